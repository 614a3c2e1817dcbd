"""phalanx why: name the cause of a cluster that failed or is stuck."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx import clouds
from phalanx.cli.console import print_json, say
from phalanx.cli.down import where
from phalanx.cli.options import cluster_option, debug_option, json_option
from phalanx.errors import ClusterError
from phalanx.spec.cloud_names import is_local

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
    after a failed creation was rolled back.

    \b
    Examples:
      phalanx why
      phalanx why -c demo --json
    """
    from phalanx.cluster.why import diagnose

    found = where(name, file)
    if found is None:
        raise ClusterError("this machine knows no cluster", "Run `phalanx init`, then `phalanx up`.")
    wanted, cloud, region = found
    diagnosis = diagnose(_evidence(wanted, cloud, region))
    if as_json:
        print_json(_as_dict(wanted, diagnosis))
    else:
        _print(wanted, diagnosis)


def _evidence(name: str, cloud: str, region: str) -> Any:
    """Return the evidence of the stack of that name or, if there is none, of the last creation that failed."""
    from phalanx.clouds import endpoint
    from phalanx.cluster import evidence

    local_is_off = is_local(cloud) and endpoint.find() is None
    at = clouds.get(cloud, region)
    state = None if local_is_off else at.describe_stack(name)
    found = evidence.kept(name) if state is None else evidence.collect(at, state)
    if found is None:
        raise ClusterError(
            f"there is no cluster {name}, and no failed creation of it is known", "`phalanx up` makes it."
        )
    return found


def _as_dict(name: str, diagnosis: Diagnosis) -> dict[str, Any]:
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
        say(f"  {one.source}: {one.text[:_LONGEST]}")
    say(diagnosis.cause.advice)
