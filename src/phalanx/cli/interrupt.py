"""phalanx local interrupt: take a spot instance of the local cloud back, as AWS does."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli import complete
from phalanx.cli.console import duration, say
from phalanx.cli.local_nodes import Quantity, members_by_name
from phalanx.cli.options import cluster_option, debug_option
from phalanx.local import endpoint

_SECONDS = {"s": 1.0, "m": 60.0}
_LONGEST_NOTICE_S = 3600.0


@click.command("interrupt")
@click.argument("node", shell_complete=complete.nodes)
@cluster_option
@click.option(
    "--notice",
    "notice_s",
    type=Quantity("time", _SECONDS, 1.0, _LONGEST_NOTICE_S),
    help="How long before its end the node has its notice: 20s, 5m … (default: 2m, as on AWS, at the weather's speed).",
)
@debug_option
def interrupt(node: str, name: str | None, file: Path | None, notice_s: float | None) -> None:
    """Take back a spot instance of a local cluster: its metadata shows the notice, and then it ends.

    The ranks of jobs that run there get SIGUSR1 and can save their state; with `--restarts` the jobs start again on
    the nodes that are left. Auto Scaling replaces the instance. The cluster needs `capacity: spot`.

    \b
    Examples:
      phalanx local interrupt worker2
      phalanx local interrupt worker2 --notice 20s
    """
    ((chosen, instance_id),) = members_by_name(name, file, (node,)).items()
    endpoint.interrupt(instance_id, notice_s)
    say(f"{chosen} ({instance_id}) has its notice" + (f" and ends in {duration(notice_s)}." if notice_s else "."))
