"""phalanx local drill: cause faults in the lives of local clusters, and check that each ends well or says why not."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli.console import note, print_json, say
from phalanx.cli.options import debug_option, json_option
from phalanx.drill import trial
from phalanx.drill.faults import possible
from phalanx.drill.scenarios import plan

if TYPE_CHECKING:
    from phalanx.drill.local_cluster import LocalCluster
    from phalanx.drill.scenarios import Scenario
    from phalanx.drill.trial import Result

_COUNT = 5
_AT_ONCE_MOST = 8


@click.command("drill")
@click.option("--count", type=click.IntRange(1), default=_COUNT, show_default=True, help="Number of scenarios.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="It decides all of them.")
@click.option("--only", type=click.IntRange(0), multiple=True, metavar="N", help="Only scenario N. Repeatable.")
@click.option(
    "--at-once",
    type=click.IntRange(1, _AT_ONCE_MOST),
    default=1,
    show_default=True,
    help="Number of clusters at a time.",
)
@click.option("--list", "as_list", is_flag=True, help="Show the scenarios, and run none.")
@click.option(
    "--logs", type=click.Path(file_okay=False, path_type=Path), help="Where to keep the local cloud's log of failures."
)
@json_option
@debug_option
def drill(
    count: int, seed: int, only: tuple[int, ...], at_once: int, as_list: bool, logs: Path | None, as_json: bool
) -> int:
    """Cause faults in the lives of local clusters: each must be ready again, or fail for a true reason.

    Each scenario is a cluster of its own, apart from yours, of three nodes: up, a fault, its repair, a job and down. A
    machine dies, stalls or is taken back; sshd or the agent is killed; a policy, a rule or a route is removed by hand;
    capacity or a quota ends; a disk fills; a command is interrupted. Nothing may be left after `down`. Every second
    one has all of the weather as well. The same seed brings the same scenarios. Exit code 1: one has failed.

    \b
    Examples:
      phalanx local drill
      phalanx local drill --seed 7 --only 3
      phalanx local drill --count 40 --at-once 4 --json
    """
    planned = plan(max(count, *(number + 1 for number in only)) if only else count, seed, possible())
    chosen = [one for one in planned if not only or one.number in only]
    if as_list:
        print_json([vars(one) for one in chosen]) if as_json else _list(chosen)
        return 0
    note(f"seed {seed}, {len(chosen)} scenarios; `phalanx local drill --seed {seed} --only N` repeats one")
    results = _run_all(chosen, at_once, logs)
    failed = [one for one in results if one.failed]
    if as_json:
        print_json([one.to_json() for one in results])
    else:
        say(f"{len(results) - len(failed)} of {len(results)} scenarios of seed {seed} ended as they should.")
    return 1 if failed else 0


def _list(scenarios: list[Scenario]) -> None:
    for one in scenarios:
        say(f"{one.number:>4}  {one}")


def _run_all(scenarios: list[Scenario], at_once: int, logs: Path | None) -> list[Result]:
    """Run the scenarios, and show each step and verdict. Ctrl-C ends all that run, and cleans up."""
    # A terminal that closes, or whoever ends this program, must leave no clusters either.
    before = {one: signal.signal(one, signal.default_int_handler) for one in (signal.SIGTERM, signal.SIGHUP)}
    live: set[LocalCluster] = set()
    results: list[Result] = []
    pool = ThreadPoolExecutor(at_once)
    try:
        running = [pool.submit(trial.run, one, _teller(one), logs, live) for one in scenarios]
        for done in as_completed(running):
            results.append(done.result())
            note(f"{results[-1].scenario.number:>4}  {results[-1].scenario}: {results[-1].verdict}")
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        note(f"interrupted: ending {len(live)} local clouds")
        raise
    finally:
        for cluster in list(live):
            cluster.end()
        pool.shutdown()
        for number, handler in before.items():
            signal.signal(number, handler)
    return sorted(results, key=lambda one: one.scenario.number)


def _teller(scenario: Scenario) -> Callable[[str], None]:
    return lambda what: note(f"{scenario.number:>4}    {what}")
