"""phalanx why: name the cause of a cluster that failed or is stuck."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx import connection
from phalanx.aws import stacks
from phalanx.cli.console import print_json, say
from phalanx.cli.down import where
from phalanx.cli.options import DEFAULT_FILE, cluster_name, cluster_option, debug_option, json_option
from phalanx.cli.terminal import beneath, one_line
from phalanx.cluster import evidence
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.why import diagnose, with_quota
from phalanx.errors import ClusterError, PhalanxError, SharedSilent
from phalanx.jobs import toolbox
from phalanx.jobs.job import list_jobs
from phalanx.runner.names import STALLED
from phalanx.spec.cloud_names import is_local
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_load import load

if TYPE_CHECKING:
    from phalanx.cluster.why import Diagnosis

_LONGEST = 600


@click.command("why")
@cluster_option
@json_option
@debug_option
def command(name: str | None, file: Path | None, as_json: bool) -> None:
    """Name the cause of a cluster that failed or is stuck, with the evidence and what to do.

    It joins the stack's events, Auto Scaling's activities, boot logs, the function's log and the roster, and also works
    after a failed creation was rolled back. Of a cluster that is well, it names nodes that were lost in the last hour,
    or jobs that stand still (`run --stall`), with the rank for which the others may wait.

    \b
    Examples:
      phalanx why
      phalanx why -c demo --json
    """
    found = where(name, file)
    if found is None:
        raise ClusterError("this machine knows no cluster", "Run `phalanx init`, then `phalanx up`.", code="no-cluster")
    diagnosis = diagnosed(*found, file)
    if as_json:
        print_json(as_dict(found[0], diagnosis))
    else:
        _print(found[0], diagnosis)


def diagnosed(name: str, cloud: str, region: str, file: Path | None = None) -> Diagnosis:
    """Return what is wrong with a cluster, or with its last creation that failed. Raises ClusterError, CloudError."""
    known = _evidence(name, cloud, region)
    diagnosis = _with_quota(diagnose(known), name, cloud, region, file)
    return diagnosis if diagnosis.cause else diagnose(replace(known, **_from_head(name)))


def _evidence(name: str, cloud: str, region: str) -> Any:
    """Return the evidence of the stack of that name or, if there is none, of the last creation that failed."""
    at = connection.connect(cloud, region)
    state = None if at.site.is_off() else stacks.describe(at, name)
    found = evidence.kept(name) if state is None else evidence.collect(at, state)
    if found is None:
        raise ClusterError(
            f"there is no cluster {name}, and no failed creation of it is known",
            "`phalanx up` makes it.",
            code="no-cluster",
        )
    return found


def _from_head(name: str) -> dict[str, str]:
    """Return why jobs can't write at the top of the shared directory, or which one stands still, if a head answers."""
    try:
        cluster = Cluster.load(name)
        if not cluster.ready:
            return {}
        if whose := toolbox.closed(cluster.remote(), cluster.shared):
            return {"closed": f"{cluster.shared} {whose}, so jobs can't write at its top"}
        still = [job for job in list_jobs(cluster) if not job.state.final and job.message.startswith(STALLED)]
        return {"stalled": "; ".join(f"job {job.id} is {job.message}" for job in still)}
    except SharedSilent as error:
        return {"closed": f"{error.message} on the head"}
    except PhalanxError:
        return {}  # nothing is known of it


def _with_quota(diagnosis: Diagnosis, name: str, cloud: str, region: str, file: Path | None) -> Diagnosis:
    """Add how the quota stands that the cause names; nothing where that can't be asked."""
    if diagnosis.cause is None or not diagnosis.cause.quota or is_local(cloud):
        return diagnosis
    at = connection.connect(cloud, region)
    try:
        spec = _spec(name, file)
        each = (at.site.facts(replace(spec, type=one, other_types=()), "") for one in spec.types)
        asked = [quota for facts in each for quota in facts.quotas]
    except (PhalanxError, TypeError):  # TypeError: an adopted cluster's record has other keys
        return diagnosis
    return with_quota(diagnosis, asked, region)


def _spec(name: str, file: Path | None) -> ClusterSpec:
    """Return what the user wants now: the cluster's file, or the record where that file is elsewhere."""
    path = file or Path(DEFAULT_FILE)
    if path.exists() and cluster_name(None, path) == name:
        return load(path)
    return ClusterSpec(**Cluster.load(name).spec)


def as_dict(name: str, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as it is printed as JSON."""
    cause = diagnosis.cause
    return {
        "cluster": name,
        "cause": cause.name if cause else None,
        "advice": cause.advice if cause else None,
        "evidence": [{"source": one.source, "text": one.text} for one in diagnosis.findings],
    }


def _print(name: str, diagnosis: Diagnosis) -> None:
    if diagnosis.cause is None:
        say(f"Cluster {name}: nothing is wrong that AWS or a node has recorded. `phalanx status` shows its state.")
        return
    say(f"Cluster {name}: {diagnosis.cause.name}.")
    for one in diagnosis.findings[:5]:
        say(f"  {one_line(one.source)}: {beneath(one.text[:_LONGEST])}")
    say(diagnosis.cause.advice)
