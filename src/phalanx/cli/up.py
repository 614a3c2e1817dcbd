"""phalanx up: create the cluster, continue its creation, or change it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx import connection
from phalanx.cli.changes import Asking
from phalanx.cli.console import duration, note, print_json, say
from phalanx.cli.options import debug_option, file_option, json_option, verbose_option, yes_option
from phalanx.cli.progress import Watch
from phalanx.cli.status import absent, describe
from phalanx.cluster.bring_up import BringUp
from phalanx.cluster.cluster_record import HEAD
from phalanx.cluster.scaling import resized
from phalanx.counts import counted
from phalanx.errors import PhalanxError
from phalanx.spec.spec_load import load, with_location

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.cluster.bring_up import Up
    from phalanx.cluster.target import Target


_NOTHING = "interrupted; nothing was requested. `phalanx up` starts again."


@click.command("up")
@file_option
@verbose_option
@yes_option
@click.option("--new-image", is_flag=True, help="Change to the newest image that `image` stands for.")
@json_option
@debug_option
def command(file: Path, verbose: bool, yes: bool, new_image: bool, as_json: bool) -> int:
    """Create the cluster and wait until every node has answered or is known to be missing.

    You can run it again at any time: it follows a creation in progress, and recognizes a cluster that is ready. If
    the file has changed, it shows what would change in the cluster, and asks. New machines get the same image as
    the others, unless you pass --new-image.

    \b
    Examples:
      phalanx up
      phalanx up --yes
      phalanx up --file big.yaml
    """
    started_s = time.monotonic()
    with _before_the_request():
        spec = load(file)
        # The local cloud starts while this process imports its client.
        connection.begin(spec.cloud)
        cloud = connection.connect(spec.cloud, spec.region)
    with Watch(f"creating cluster {spec.name}", started_s, verbose) as watch, with_location(file):
        asking = Asking(yes, watch.paused)
        bring_up = BringUp(cloud, spec, asking, new_image=new_image)
        try:
            watch.follow(bring_up.steps())
        except KeyboardInterrupt:
            return _interrupted(bring_up.target)
        finally:
            if bring_up.result is None:
                _stop_if_idle(cloud)
    assert bring_up.result is not None
    up = bring_up.result
    if up.resize:
        up = resized(replace(up, cluster=connection.attached(up.cluster)), up.resize, note)
    if as_json:
        print_json({**_as_json(up, watch.elapsed_s), "changed": asking.as_json()})
    else:
        _report(up, watch.elapsed_s, cloud.site.open_networks())
    return 0


@contextmanager
def _before_the_request() -> Iterator[None]:
    """Say of Ctrl-C that nothing was requested."""
    try:
        yield
    except KeyboardInterrupt:
        note(_NOTHING)
        raise click.exceptions.Exit(130) from None


def _stop_if_idle(cloud: Aws) -> None:
    """Stop a local cloud that runs no cluster."""
    try:
        cloud.site.stop_if_idle()
    except PhalanxError as error:
        note(f"warning: {error.message}")


def _interrupted(target: Target) -> int:
    name = target.spec.name
    if target.stack is None and target.may_be_requested:
        note(f"interrupted; stack {name} may have been requested")
        note("`phalanx up` follows it or starts again; `phalanx down` removes it.")
    elif target.stack is None:
        note(_NOTHING)
    else:
        note(f"interrupted; CloudFormation continues with stack {name}")
        note("`phalanx up` follows it again, `phalanx down` removes it.")
    return 130


def _report(up: Up, took_s: float, open_networks: str) -> None:
    cluster, roster = up.cluster, up.roster
    say()
    if up.changed:
        say(f"Cluster {cluster.name} is as the file says after {duration(took_s)}.")
    elif up.already:
        say(f"Cluster {cluster.name} is up already on {cluster.cloud}; nothing was changed.")
    elif roster.missing:
        say(
            f"Cluster {cluster.name} has only {len(roster.nodes)} of {roster.requested} nodes after {duration(took_s)}."
        )
    else:
        say(f"Cluster {cluster.name} is ready after {duration(took_s)}.")
    say(f"  nodes    {len(roster.nodes)} of {roster.requested}, {counted(cluster.slots, 'slot')} each")
    say(f"  shared   {cluster.shared}")
    for what, which in absent(roster):
        say(f"  {what:<7}  {which}")
    say(f"  head     {cluster.head_address}")
    if up.outdated:
        names = ", ".join(up.outdated)
        say(f"  old      {names}: launched with earlier settings, which a machine keeps until it is replaced")
        say(f"  note     {_renewal(up)}")
    if not cluster.accounts_separated:
        say("  note     jobs run as root on these nodes, unlike on AWS; `phalanx local status` shows why")
    for line in open_networks.splitlines():
        say(f"  note     {line}")
    say("Next: `phalanx run -- python train.py`, `phalanx ssh`, `phalanx status`, `phalanx down`.")
    if roster.missing:
        lacking = counted(len(roster.missing), "node")
        say(f"Warning: {lacking} missing, so jobs run on {len(roster.nodes)}.")
        say(f"`phalanx scale {roster.requested}` requests the missing nodes again.")


def _renewal(up: Up) -> str:
    """Say how nodes come to what they are launched with now."""
    head = "a head gets new settings when AWS replaces it, and after the cluster was stopped"
    if up.outdated == (HEAD,):
        return head
    return f"`phalanx scale 1`, then `phalanx scale {up.roster.requested}`, replaces the workers; {head}"


def _as_json(up: Up, took_s: float) -> dict[str, Any]:
    described = describe(up.cluster, "CREATE_COMPLETE", up.roster)
    return {**described, "already": up.already, "outdated": up.outdated, "took_s": round(took_s, 3)}
