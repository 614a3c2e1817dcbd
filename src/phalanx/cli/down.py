"""phalanx down: delete the cluster and prove that nothing is left."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx import clouds
from phalanx.cli.console import duration, note, print_json, say
from phalanx.cli.options import DEFAULT_FILE, cluster_name, cluster_option, debug_option
from phalanx.errors import ClusterError

if TYPE_CHECKING:
    from phalanx.cli.progress import Watch


@click.command("down")
@cluster_option
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@click.option("--json", "as_json", is_flag=True, help="Print the final state as JSON.")
@debug_option
def command(name: str | None, file: Path | None, yes: bool, as_json: bool) -> int:
    """Delete the cluster, the data in its shared directory included, wait, and prove that nothing is left.

    \b
    Examples:
      phalanx down
      phalanx down -c demo --yes
    """
    found = _where(name, file)
    if found is None:
        return _report("", False, 0.0, as_json)
    wanted, cloud, region = found
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete cluster {wanted} ({cloud}) and all data on it?", abort=True, err=True)
    started_s = time.monotonic()
    from phalanx.cli.progress import Watch

    with Watch(f"deleting cluster {wanted}", started_s) as watch:
        try:
            existed = _take_down(watch, wanted, cloud, region)
        except KeyboardInterrupt:
            note(f"interrupted; the deletion of {wanted} goes on. `phalanx down` follows it again.")
            return 130
    return _report(wanted, existed, watch.elapsed_s, as_json)


def _where(name: str | None, file: Path | None) -> tuple[str, str, str] | None:
    """Name, cloud and region of the cluster that is meant; None when there is none.

    A record says it; without one (another machine, a record lost) the file does.
    """
    from phalanx.cluster import Cluster, known

    wanted = cluster_name(name, file)
    if wanted is None and not known():
        return None
    try:
        cluster = Cluster.load(wanted)
        return cluster.name, cluster.cloud, cluster.region
    except ClusterError:
        path = file or Path(DEFAULT_FILE)
        if wanted is None or not path.exists():
            raise
    from phalanx.spec import load

    spec = load(path)
    if spec.name != wanted:
        raise ClusterError(f"no cluster '{wanted}' is known on this machine", f"{path} describes '{spec.name}'.")
    return spec.name, spec.cloud, spec.region


def _take_down(watch: Watch, name: str, cloud: str, region: str) -> bool:
    """Whether there was anything to delete."""
    from phalanx.clouds import endpoint
    from phalanx.take_down import TakeDown, forget

    take_down = TakeDown(clouds.get(cloud, region), name)
    try:
        watch.follow(take_down.steps())
    except endpoint.NotRunning:
        # All that it held went with its processes; only this machine's record can be left.
        forget(name)
    return take_down.found


def _report(name: str, existed: bool, took_s: float, as_json: bool) -> int:
    if as_json:
        print_json({"cluster": name or None, "existed": existed, "left": [], "took_s": round(took_s, 3)})
    elif existed:
        say(f"Cluster {name} is deleted; nothing of it is left (checked in {duration(took_s)}).")
    else:
        say("Nothing to do: there is no such cluster." if name else "Nothing to do: no cluster is known here.")
    return 0
