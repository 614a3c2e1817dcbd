"""Drill many clusters: `make soak PART=drill COUNT=200` goes on where an earlier one was interrupted.

Scenario N of a seed is what `phalanx local drill --seed SEED --only N` runs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.__main__ import machine
from benchmarks.measure import GOES_ON, record_to_go_on, todays_result
from phalanx.drill.faults import possible
from phalanx.drill.scenarios import Scenario, plan
from phalanx.drill.trial import Result, run

WHOLE = 200  # drills of a soak whose result is kept


def _one(scenario: Scenario, logs: Path | None) -> Result:
    return run(scenario, lambda _what: None, logs)


def read(record: Path) -> list[dict[str, Any]]:
    """Read the results of earlier drills."""
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=WHOLE, help="number of clusters")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1, help="number of clusters at a time, which mostly wait")
    parser.add_argument("--record", type=Path, help=GOES_ON)
    parser.add_argument("--logs", type=Path, help="a directory for the local cloud's logs of drills that failed")
    arguments = parser.parse_args()
    # In the background of a script SIGINT is ignored, and the command lines started here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    planned = plan(arguments.count, arguments.seed, possible())
    seed = arguments.seed
    record = arguments.record or record_to_go_on("drill", len(planned), lambda kept: len(of_seed(read(kept), seed)))
    results = read(record)
    left = missing(planned, results)
    pool = ThreadPoolExecutor(arguments.at_once)
    try:
        for ended in as_completed([pool.submit(_one, one, arguments.logs) for one in left]):
            result = ended.result()
            print(f"{result.scenario.number:>4}  {result.scenario}: {result.verdict}", flush=True)
            results.append({**result.to_json(), "commit": str(machine()["commit"])[:12]})
            with record.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
    finally:
        # After Ctrl-C, those that run come to their end, and leave nothing; the others don't begin.
        pool.shutdown(cancel_futures=True)
    print("\n" + (text := report(results)), end="")
    todays_result("drill", "txt").write_text(text)
    raise SystemExit(any(one["failed"] for one in results))


if __name__ == "__main__":
    main()
