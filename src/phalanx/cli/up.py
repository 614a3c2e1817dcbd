"""phalanx up: create the cluster, or continue its creation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx import clouds
from phalanx.cli.console import duration, note, print_json, say
from phalanx.cli.options import debug_option, file_option, verbose_option

if TYPE_CHECKING:
    from phalanx.cluster.bring_up import BringUp, Up


@click.command("up")
@file_option
@verbose_option
@click.option("--json", "as_json", is_flag=True, help="Print the final state as JSON.")
@debug_option
def command(file: Path, verbose: bool, as_json: bool) -> int:
    """Create the cluster and wait until every node has answered or is known to be missing.

    You can run it again at any time: it follows a creation in progress, and recognizes a cluster that is ready.

    \b
    Examples:
      phalanx up
      phalanx up -f big.yaml
    """
    started_s = time.monotonic()
    from phalanx.spec.spec_load import load, with_location

    spec = load(file)
    # The local cloud starts while this process imports its client.
    clouds.begin(spec.cloud)
    from phalanx.cli.progress import Watch
    from phalanx.cluster.bring_up import BringUp

    bring_up = BringUp(clouds.get(spec.cloud, spec.region), spec)
    with Watch(f"creating cluster {spec.name}", started_s, verbose) as watch, with_location(file):
        try:
            watch.follow(bring_up.steps())
        except KeyboardInterrupt:
            return _interrupted(bring_up)
        finally:
            _stop_if_idle(bring_up)
    assert bring_up.result is not None
    _report(bring_up.result, watch.elapsed_s, as_json, bring_up.cloud.open_networks())
    return 0


def _stop_if_idle(bring_up: BringUp) -> None:
    """Stop a local cloud that runs no cluster."""
    if bring_up.result is None:
        from phalanx.errors import PhalanxError

        try:
            bring_up.cloud.stop_if_idle()
        except PhalanxError as error:
            note(f"warning: {error.message}")


def _interrupted(bring_up: BringUp) -> int:
    name = bring_up.spec.name
    if bring_up.stack is None:
        note("interrupted; no stack was requested")
    else:
        note(f"interrupted; the creation of stack {name} continues")
        note("`phalanx up` follows it again, `phalanx down` removes it.")
    return 130


def _report(up: Up, took_s: float, as_json: bool, open_networks: str) -> None:
    if as_json:
        print_json(_as_json(up, took_s))
        return
    from phalanx.cli.status import absent

    cluster, roster = up.cluster, up.roster
    say()
    if up.already:
        say(f"Cluster {cluster.name} is up already on {cluster.cloud}; nothing was changed.")
    else:
        say(f"Cluster {cluster.name} is ready after {duration(took_s)}.")
    say(f"  nodes    {len(roster.nodes)} of {roster.requested}, {cluster.slots} slots each")
    say(f"  shared   {cluster.shared}")
    for what, which in absent(roster):
        say(f"  {what:<7}  {which}")
    say(f"  head     {cluster.head_address}")
    if not cluster.accounts_separated:
        say("  note     accounts are not separated on these nodes: every user is uid 0 (local cloud, single mode)")
    for line in open_networks.splitlines():
        say(f"  note     {line}")
    say("Next: `phalanx run -- python train.py`, `phalanx ssh`, `phalanx status`, `phalanx down`.")


def _as_json(up: Up, took_s: float) -> dict[str, Any]:
    from phalanx.cli.status import describe

    return {**describe(up.cluster, "CREATE_COMPLETE", up.roster), "already": up.already, "took_s": round(took_s, 3)}
