"""Record a ready cluster on this machine: how ssh reaches it, and the settings that it was created with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from phalanx.aws.model import StackState
from phalanx.cluster import ssh_config
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.stack import read_authority, read_roster, require_roster
from phalanx.errors import CloudError
from phalanx.node import validate
from phalanx.node.roster import Roster
from phalanx.plan.machine_images import admin_user_of
from phalanx.spec.spec_checks import shared

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# Names, ids, ARNs, URLs and paths: none has a blank or a sign of a file of settings.
_WORD = re.compile(r"[\w.:/@+=,#*-]{0,2048}", re.ASCII)
_FOR_PEOPLE = ("Outcome", "Login")
_PARAMETERS = ("InstanceType", "SharedDirectory", "FileSystemId", "Image", "Zone")


def record_ready(cloud: Aws, state: StackState, settings: Mapping[str, Any]) -> tuple[Cluster, Roster]:
    """Write the record and the ssh_config of a ready stack; `settings` are keys of a ClusterSpec."""
    _require_sound(state, settings)
    table = state.outputs["RosterTable"]
    roster = require_roster(cloud, table, state.name)
    address = state.outputs.get("HeadAddress", "")
    route = cloud.site.ssh_route(by_session=not address)
    cluster = Cluster(
        name=state.name,
        cloud=cloud.name,
        region=cloud.region,
        stack_id=state.stack_id,
        head_address=address or roster.head.instance_id,
        shared=settings["shared"],
        slots=max(node.slots for node in roster.nodes),
        nodes=len(roster.nodes),
        table=table,
        admin_user=cloud.machines.admin_user or _admin_user(cloud, state.parameters.get("Image", "")),
        accounts_separated=cloud.site.accounts_separated(),
        created_s=state.created_s,
        spec=settings,
    )
    _write_ssh_files(cloud, cluster, route)
    return cluster.save(), roster


def _require_sound(state: StackState, settings: Mapping[str, Any]) -> None:
    """Refuse outputs and parameters that the template can't have: whoever wrote the stack chose them."""
    values = {name: value for name, value in state.outputs.items() if name not in _FOR_PEOPLE}
    values |= {name: value for name, value in state.parameters.items() if name in _PARAMETERS}
    try:
        validate.address(values.get("HeadAddress", "0.0.0.0"))
        wrong = next((name for name, value in values.items() if not _WORD.fullmatch(value)), "")
        if wrong:
            raise validate.Invalid(f"{wrong} is not one word: {values[wrong]!r:.60}")
        shared(settings["shared"])
    except ValueError as error:
        raise CloudError(
            f"stack {state.name} has values that no stack of phalanx has: {error}",
            "Use it only if you know who made it. CloudFormation's console deletes it.",
            code="not-a-phalanx-stack",
        ) from None


def follow_head(cloud: Aws, cluster: Cluster) -> bool:
    """Write again how ssh reaches the head; return False if that was so.

    A head without a public address is reached by the id of its present instance. Another version of phalanx, or one
    in another environment, may have written the ssh_config.
    """
    before, address = cluster.ssh_config.read_text(), cluster.head_address
    if cluster.by_session:
        roster = read_roster(cloud, cluster.table)
        address = roster.head.instance_id if roster else address
    moved = replace(cluster, head_address=address)
    _write_ssh_files(cloud, moved, cloud.site.ssh_route(by_session=cluster.by_session))
    if moved != cluster:
        moved.save()
    return cluster.ssh_config.read_text() != before


def _write_ssh_files(cloud: Aws, cluster: Cluster, route: Sequence[str]) -> None:
    ssh_config.write(cluster, read_authority(cloud, cluster.table), route)
    ssh_config.write_hosts(cluster)


def _admin_user(cloud: Aws, parameter: str) -> str:
    image = cloud.site.image(parameter)
    return admin_user_of(image.name if image else "", parameter)
