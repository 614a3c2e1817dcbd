"""phalanx adopt: take over a cluster that this machine did not create, or an EMR cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx import connection
from phalanx.aws import sessions
from phalanx.cli.console import confirm, note, require_terminal, say
from phalanx.cli.options import ExistingPath, debug_option, region_option, yes_option
from phalanx.cli.progress import Watch
from phalanx.cluster.ready import adopt
from phalanx.counts import counted
from phalanx.emr import look_up
from phalanx.emr.adoption import EmrAdoption, Wanted
from phalanx.errors import SpecError
from phalanx.spec.cloud_names import CLOUDS
from phalanx.spec.makers import EMR_CLOUDS
from phalanx.spec.spec_checks import WrongError
from phalanx.spec.spec_checks import shared as shared_directory

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster
    from phalanx.node.roster import Roster


def _directory(_: click.Context, __: click.Parameter, value: str) -> str:
    try:
        return shared_directory(value)
    except WrongError as error:
        raise click.BadParameter(str(error)) from None


@click.command("adopt")
@click.argument("name", required=False)
@click.option("--emr", metavar="ID", help="Adopt this EMR cluster (j-…), which phalanx did not make, as NAME.")
@click.option("--cloud", type=click.Choice(sorted(CLOUDS)), help="The cloud. Without it: aws, or emr with --emr.")
@region_option
@click.option(
    "-i",
    "--identity",
    type=ExistingPath(dir_okay=False),
    help="The private key to the stack's SshPublicKey, or to the EMR cluster's key pair; default: those in ~/.ssh.",
)
@click.option(
    "--shared",
    metavar="DIR",
    default="/efs",
    show_default=True,
    callback=_directory,
    help="With --emr: the shared directory.",
)
@click.option("--min", "least", type=click.IntRange(1), help="With --emr: the fewest nodes; default: all.")
@yes_option
@debug_option
def command(
    name: str | None,
    emr: str | None,
    cloud: str | None,
    region: str,
    identity: Path | None,
    shared: str,
    least: int | None,
    yes: bool,
) -> None:
    """Take over a cluster that was created on another machine or in CloudFormation's console.

    Afterwards `status`, `run`, `ssh`, `down` and all other commands work here. A copy of the private key is stored with
    the cluster's record.

    With --emr, it adds what jobs need to an EMR cluster that phalanx did not make: a small stack, a policy on the
    role of its nodes, and the agent on each node, by ssh. It shows all of that, and asks. `down` removes it again
    and leaves the EMR cluster running.

    \b
    Examples:
      phalanx adopt demo --region eu-central-1
      phalanx adopt demo -i ~/.ssh/cluster_key
      phalanx adopt --emr j-0123456789ABC -i ~/.ssh/my-key.pem
    """
    if emr:
        cluster, roster = _adopt_emr(emr, cloud or "emr", region, Wanted(name or "", shared, least or 0, identity), yes)
    elif name:
        cluster, roster = adopt(connection.connect(cloud or "aws", region), name, identity)
    else:
        raise SpecError(
            "which cluster?", "Write its name, or --emr with the id of an EMR cluster.", code="which-cluster"
        )
    say(f"Cluster {cluster.name} is known here now: {len(roster.nodes)} of {counted(roster.requested, 'node')}.")
    say("Next: `phalanx status`, `phalanx run -- python train.py`, `phalanx ssh`, `phalanx down`.")


def _adopt_emr(cluster_id: str, cloud: str, region: str, wanted: Wanted, yes: bool) -> tuple[Cluster, Roster]:
    if cloud not in EMR_CLOUDS:
        raise SpecError(
            f"--cloud {cloud} has no EMR clusters", "Write --cloud emr, or --cloud local-emr.", code="not-emr"
        )
    if not yes:
        require_terminal()
    started_s = time.monotonic()
    api = connection.connect(cloud, region)
    adoption = EmrAdoption(api, sessions.domain_of(region), look_up.find(api, cluster_id), wanted)
    try:
        for line in _terms(adoption):
            note(line)
        if not yes:
            confirm(f"Adopt the EMR cluster {cluster_id} as {adoption.name}?")
        with Watch(f"adopting {cluster_id}", started_s) as watch:
            try:
                watch.follow(adoption.steps())
            except KeyboardInterrupt:
                note("interrupted; what was added is removed again")
                watch.follow(adoption.undo())
                raise
    finally:
        adoption.close()
    assert adoption.result is not None
    return adoption.result


def _terms(adoption: EmrAdoption) -> list[str]:
    """Say what adoption adds."""
    found, terms = adoption.found, adoption.terms
    lines = [
        f"EMR cluster {found.cluster_id} ({found.name}), {counted(len(found.instances), 'node')}, becomes cluster "
        f"{terms.name}:",
        f"  stack    {terms.name}: a queue, a table, a log group and a role for jobs; no machine",
        f"  policy   on the role {found.role}, for these: every cluster with this role has it",
        "  nodes    the user phalanx, the agent, and its settings of ssh, by ssh as hadoop",
    ]
    if terms.served_by_head:
        lines.append(f"  shared   {terms.shared} of the master's disk, over NFS: nothing is mounted there")
    else:
        lines.append(f"  shared   {terms.shared}, which is mounted on all nodes")
        if adoption.closed:
            mode = f"its mode {adoption.closed} gets o+rwx,+t, as /tmp has, until `phalanx down`"
            lines.append(f"  writable {terms.shared}: jobs, `put` and `data fetch` could not write at its top; {mode}")
    if not found.head_trains:
        lines.append(f"  head     the master is {found.master_type}, and runs no processes of jobs")
    if found.task_instances:
        lines.append(f"  left out {found.task_instances} task instances")
    if found.ends_itself:
        lines.append("  warning  EMR ends this cluster after its last step")
    return lines
