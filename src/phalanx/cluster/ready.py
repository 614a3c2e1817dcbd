"""Record a ready cluster on this machine: how ssh reaches it, and the settings that it was created with.

That may be a cluster that another machine created, or somebody in CloudFormation's console.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.aws import stacks
from phalanx.aws.model import StackState
from phalanx.cluster import keys, ssh_config
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.stack import read_authority, read_roster, require_ours, require_roster
from phalanx.errors import CloudError, ClusterError
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
# The fields of a ClusterSpec that the stack's parameters show: field → parameter.
_TEXT_PARAMETERS = {"type": "InstanceType", "shared": "SharedDirectory"}
_NUMBER_PARAMETERS = {"min": "MinNodes", "node_timeout_s": "NodeTimeout"}


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


def adopt(cloud: Aws, name: str, identity: Path | None = None) -> tuple[Cluster, Roster]:
    """Write this machine's record of a ready cluster, with a copy of the private key that its nodes accept.

    `identity` is that key's file; by default it is looked for in ~/.ssh. Raises CloudError or ClusterError.
    """
    state = stacks.describe(cloud, name)
    if state is None:
        raise CloudError(
            f"there is no stack {name} in {cloud.region}", "Choose another --region or --cloud.", code="no-stack"
        )
    require_ours(state)
    if not state.ready:
        raise CloudError(
            f"stack {name} is {state.status}", "Only a cluster that is ready can be adopted.", code="cluster-not-ready"
        )
    _refuse_another(name, state)
    _take_key(name, state.parameters.get("SshPublicKey", ""), identity)
    return record_ready(cloud, state, settings(cloud, state))


def _refuse_another(name: str, state: StackState) -> None:
    """Refuse if this machine has another cluster of that name: its record and its only key would be replaced."""
    try:
        known = Cluster.load(name)
    except ClusterError:
        return
    if known.stack_id and known.stack_id != state.stack_id:
        raise ClusterError(
            f"this machine already knows another cluster {name}: {known.stack_id}",
            f"`phalanx down -c {name}` deletes that one; or adopt this one with another XDG_STATE_HOME.",
            code="cluster-exists",
        )


def _take_key(name: str, accepted: str, identity: Path | None) -> None:
    if not accepted:
        raise ClusterError(
            f"cluster {name} accepts no key as its job user: its parameter SshPublicKey is empty",
            "Create the stack again with your public key there.",
            code="no-public-key",
        )
    if keys.public(name).split()[:2] == accepted.split()[:2]:
        return
    for candidate in [identity] if identity else _private_keys():
        if keys.take(name, candidate, accepted):
            return
    looked = str(identity) if identity else "~/.ssh"
    raise ClusterError(
        f"cluster {name} accepts the key {accepted[:40]}…, and {looked} has no private key for it without a passphrase",
        "Choose the file of the private key with -i.",
        code="no-private-key",
    )


def _private_keys() -> list[Path]:
    return sorted(path for path in (Path.home() / ".ssh").glob("id_*") if path.suffix != ".pub")


def settings(cloud: Aws, state: StackState) -> dict[str, Any]:
    """Return the settings that are known from the parameters; the others are not compared by `up`.

    No file describes an EMR cluster that phalanx did not make. Its record contains this in place of a file's keys.
    """
    given = state.parameters
    known: dict[str, Any] = {"name": state.name, "cloud": cloud.name, "region": cloud.region, "nodes": state.nodes}
    known |= {field: given[parameter] for field, parameter in _TEXT_PARAMETERS.items()}
    known |= {field: int(given[parameter]) for field, parameter in _NUMBER_PARAMETERS.items()}
    if own := given.get("FileSystemId"):
        known["file_system"] = own
    if state.emr_cluster:
        known["adopted"] = state.emr_cluster
        known["head"] = {"type": given["HeadType"]} if given["HeadType"] != given["InstanceType"] else None
    return known
