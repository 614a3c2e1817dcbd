"""phalanx down: delete the cluster and prove that nothing is left."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx import connection
from phalanx.cli.console import confirm, duration, note, print_json, require_terminal, say
from phalanx.cli.options import (
    DEFAULT_FILE,
    cluster_name,
    cluster_option,
    debug_option,
    json_option,
    load_cluster,
    verbose_option,
)
from phalanx.cli.progress import Watch
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.take_down import TakeDown, forget
from phalanx.errors import ClusterError, PhalanxError
from phalanx.jobs.job import list_jobs
from phalanx.local import endpoint
from phalanx.spec.spec_load import load, load_value
from phalanx.state_files import known

if TYPE_CHECKING:
    from phalanx.cluster.take_down import Kept


@click.command("down")
@cluster_option
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation. Data are kept unless --keep says no.")
@click.option(
    "--keep",
    type=click.Choice(("yes", "no", "ask")),
    help="Whether to keep the shared directory; default: as phalanx.yaml specifies.",
)
@verbose_option
@json_option
@debug_option
def command(name: str | None, file: Path | None, yes: bool, keep: str | None, verbose: bool, as_json: bool) -> int:
    """Delete the cluster, wait, and prove that nothing is left.

    The shared directory is deleted if it is empty, if phalanx.yaml has `keep: no`, or if you confirm it here. With
    `storage: head` it ends with the head: you are asked before that. Without a terminal, --yes is required.

    \b
    Examples:
      phalanx down
      phalanx down -c demo --yes
      phalanx down --keep no
    """
    found = where(name, file)
    if found is None:
        return _report("", None, 0.0, as_json)
    wanted, cloud, region = found
    if not yes:
        require_terminal()
        confirm(f"{_question(wanted, cloud)}{_running_jobs(wanted)}")
    started_s = time.monotonic()
    take_down = _begin(wanted, cloud, region, keep or _keep_now(wanted, file), asks=not yes)
    with Watch(f"deleting cluster {wanted}", started_s, verbose) as watch:
        try:
            _follow(watch, take_down)
        except KeyboardInterrupt:
            note(f"interrupted; the deletion of {wanted} continues. `phalanx down` follows it again.")
            return 130
    return _report(wanted, take_down, watch.elapsed_s, as_json)


def _question(name: str, cloud: str) -> str:
    try:
        adopted = Cluster.load(name).spec.get("adopted")
    except ClusterError:
        adopted = None
    if adopted:
        return f"Remove phalanx from {adopted} ({name})? It continues without phalanx."
    return f"Delete cluster {name} ({cloud})?"


def _running_jobs(name: str) -> str:
    """Return a sentence about the jobs that run on the cluster; "" if there are none."""
    try:
        cluster = load_cluster(name, None)
        jobs = [job.id for job in list_jobs(cluster) if not job.state.final] if cluster.ready else []
    except (PhalanxError, OSError) as error:
        reason = error.message if isinstance(error, PhalanxError) else error.strerror
        return f" Its jobs could not be listed: {reason}."
    if len(jobs) == 1:
        return f" Job {jobs[0]} runs on it and ends with it."
    return f" Jobs {' and '.join(jobs)} run on it and end with it." if jobs else ""


def _keep_now(name: str, file: Path | None) -> str | None:
    """Return the current `keep` of the cluster's file, which may be changed after `up`."""
    path = file or Path(DEFAULT_FILE)
    if not path.exists() or cluster_name(None, path) != name:
        return None
    return load_value(path, "keep")


def where(name: str | None, file: Path | None) -> tuple[str, str, str] | None:
    """Return the name, cloud and region of the chosen cluster; None if there is no cluster.

    They come from the record or, without one (on another machine), from the file.
    """
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
    spec = load(path)
    if spec.name != wanted:
        raise ClusterError(
            f"no cluster '{wanted}' is known on this machine", f"{path} describes '{spec.name}'.", code="no-cluster"
        )
    return spec.name, spec.cloud, spec.region


def _begin(name: str, cloud: str, region: str, keep: str | None, asks: bool) -> TakeDown | None:
    """Prepare the deletion; return None if there can't be anything to delete."""

    def wanted(contents: str) -> bool:
        return asks and confirm(f"It contains {contents}. Delete that too?", abort=False)

    def loses(contents: str) -> bool:
        question = f"The head's own disk has {contents}. They end with the head. Delete the cluster with them?"
        return not asks or confirm(question, abort=False)

    try:
        return TakeDown(connection.connect(cloud, region), name, keep, wanted, loses)
    except endpoint.NotRunning:
        # The cluster ended with the local cloud; only this machine's record can be left.
        forget(name)
        return None


def _follow(watch: Watch, take_down: TakeDown | None) -> None:
    if take_down is None:
        return
    try:
        watch.follow(take_down.steps())
    except endpoint.NotRunning:
        # Another `down` was faster: the local cloud ends with its last cluster.
        forget(take_down.name)


def _report(name: str, done: TakeDown | None, took_s: float, as_json: bool) -> int:
    existed, kept = (done.found, done.kept) if done else (False, None)
    lost = done.lost if done else ""
    if as_json:
        facts = {
            "lost": lost or None,
            "cluster": name or None,
            "existed": existed,
            "left": [],
            "kept": _kept_as_json(kept),
        }
        print_json({**facts, "took_s": round(took_s, 3)})
    elif done and done.goes_on:
        say(f"Cluster {name} is given back; its {done.goes_on} continues (checked in {duration(took_s)}).")
    elif existed:
        rest = "nothing else of it is left" if kept else "nothing of it is left"
        say(f"Cluster {name} is deleted; {rest} (checked in {duration(took_s)}).")
    else:
        say("Nothing to do: there is no such cluster." if name else "Nothing to do: no cluster is known here.")
    if lost and not as_json:
        say(f"  lost     with the head's own disk: {lost}")
    if kept and not as_json:
        say(f"  kept     its shared directory, {kept.file_system}: {kept.place}")
        say(f"           `phalanx up` of {name} uses it again; `{kept.delete}` deletes it.")
    return 0


def _kept_as_json(kept: Kept | None) -> list[dict[str, str]]:
    return [{"file_system": kept.file_system, "place": kept.place, "delete": kept.delete}] if kept else []
