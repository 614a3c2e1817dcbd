"""Cause faults in the lives of local clusters: each must be ready again, or fail for a true reason.

Each scenario is a cluster of its own, of three nodes: up, a fault, its repair, a job and down. Nothing may be left
after `down`. Every second one has all of the weather as well. `--list` shows the faults of a seed.

The same seed brings the same scenarios: `--seed SEED --only N` repeats one. Without `--only` the results are recorded,
and the next call continues where this one was interrupted: `make soak PART=drill COUNT=200`. Exit code 1: one failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.__main__ import machine
from benchmarks.drill import trial
from benchmarks.drill.faults import possible
from benchmarks.drill.local_cluster import LocalCluster
from benchmarks.drill.scenarios import Scenario, plan
from benchmarks.drill.trial import Result
from benchmarks.measure import GOES_ON, read_results, record_to_go_on, todays_result

WHOLE = 200  # drills of a soak whose result is kept


def of_seed(results: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    return [one for one in results if one["scenario"]["seed"] == seed]


def missing(planned: Sequence[Scenario], results: Sequence[dict[str, Any]]) -> list[Scenario]:
    """Return what is planned and not over."""
    over = {(one["scenario"]["seed"], one["scenario"]["number"]) for one in results}
    return [one for one in planned if (one.seed, one.number) not in over]


def report(results: Sequence[dict[str, Any]]) -> str:
    """Summarize: how many failed, and why; which faults failed a step for a true reason, and which did not."""
    failed = [one for one in results if one["failed"]]
    void = [one for one in results if one["void"]]
    seeds = " and ".join(sorted({str(one["scenario"]["seed"]) for one in results}))
    commits = ", ".join(dict.fromkeys(one["commit"] for one in results))
    lines = [
        f"{datetime.date.today().isoformat()}: {len(results)} drills of seed {seeds}, {machine()['cores']} cores,"
        f" commits {commits}",
        f"  {len(failed)} failed, {len(void)} void,"
        f" {sum(bool(one['reason']) for one in results)} with a step that failed for a true reason,"
        f" {sum(one['scenario']['weather'] for one in results)} in bad weather",
        *(f"  {name:<28}{count:>4}" for name, count in _faults(results).items()),
        *(f"  {_name(one)}, commit {one['commit']}: {'; '.join(one['problems'])[:600]}" for one in failed),
        *(f"  {_name(one)}, void: {one['void']}" for one in void),
    ]
    return "\n".join(lines) + "\n"


def _faults(results: Sequence[dict[str, Any]]) -> dict[str, int]:
    return dict(sorted(Counter(one["scenario"]["fault"] for one in results).items()))


def _name(one: dict[str, Any]) -> str:
    told = one["scenario"]
    return f"seed {told['seed']}, {told['number']} ({told['step']}: {told['fault']})"


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_all(scenarios: Sequence[Scenario], at_once: int, logs: Path | None, keep: Callable[[Result], None]) -> None:
    """Run the scenarios, and show each step and verdict. Ctrl-C ends all that run, and cleans up."""
    # No cluster may be left when the terminal closes or a caller ends this program. A shell starts background jobs of a
    # script with SIGINT ignored, and the command lines started here would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    live: set[LocalCluster] = set()
    pool = ThreadPoolExecutor(at_once)
    try:
        running = [pool.submit(trial.run, one, _teller(one), logs, live) for one in scenarios]
        for ended in as_completed(running):
            result = ended.result()
            note(f"{result.scenario.number:>4}  {result.scenario}: {result.verdict}")
            keep(result)
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        note(f"interrupted: ending {len(live)} local clouds")
        raise
    finally:
        for cluster in list(live):
            cluster.end()
        pool.shutdown()


def _teller(scenario: Scenario) -> Callable[[str], None]:
    return lambda what: note(f"{scenario.number:>4}    {what}")


def soak(planned: Sequence[Scenario], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run what the record lacks, and write a report; return the results of all."""
    seed = arguments.seed
    record = arguments.record or record_to_go_on(
        "drill", len(planned), lambda kept: len(of_seed(read_results(kept), seed))
    )
    results = read_results(record)

    def keep(result: Result) -> None:
        results.append({**result.to_json(), "commit": str(machine()["commit"])[:12]})
        with record.open("a") as file:
            file.write(json.dumps(results[-1]) + "\n")

    run_all(missing(planned, results), arguments.at_once, arguments.logs, keep)
    todays_result("drill", "txt").write_text(report(results))
    note("\n" + report(results))
    return results


def repeat(chosen: Sequence[Scenario], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run some scenarios, and record nothing."""
    results: list[Result] = []
    run_all(chosen, arguments.at_once, arguments.logs, results.append)
    failed = [one for one in results if one.failed]
    note(f"{len(results) - len(failed)} of {len(results)} scenarios of seed {arguments.seed} ended as they should.")
    return [one.to_json() for one in sorted(results, key=lambda one: one.scenario.number)]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.drill", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=WHOLE, help="number of scenarios (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="it decides all of them (default: %(default)s)")
    parser.add_argument("--only", type=int, action="append", metavar="N", help="only scenario N; repeatable")
    parser.add_argument("--at-once", type=int, default=1, help="number of clusters at a time, which mostly wait")
    parser.add_argument("--list", action="store_true", dest="as_list", help="show the scenarios, and run none")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print what is shown or found as JSON")
    parser.add_argument("--record", type=Path, help=GOES_ON)
    parser.add_argument("--logs", type=Path, help="a directory for the local cloud's logs of drills that failed")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    most = max([arguments.count, *(number + 1 for number in arguments.only or ())])
    planned = plan(most, arguments.seed, possible())
    chosen = [planned[number] for number in sorted(set(arguments.only or range(arguments.count)))]
    if arguments.as_list:
        shown = [vars(one) for one in chosen]
        print(json.dumps(shown) if arguments.as_json else "\n".join(f"{one.number:>4}  {one}" for one in chosen))
        return
    try:
        results = repeat(chosen, arguments) if arguments.only else soak(chosen, arguments)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if arguments.as_json:
        print(json.dumps(results))
    raise SystemExit(any(one["failed"] for one in results))


if __name__ == "__main__":
    main()
