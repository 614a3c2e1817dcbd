"""Bring up every pair of options: `make soak PART=pairs` goes on where an earlier one was interrupted.

A few choices of options contain every pair that a plan accepts (benchmarks/covering.py). cfn-lint reads the document
of each; then the local cloud brings it up with one or two nodes, a job runs, and `down` must leave nothing.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.__main__ import machine
from benchmarks.covering import Array, contained, cover
from benchmarks.drill.life import Life, outcome
from benchmarks.drill.local_cluster import LocalCluster, local_cluster
from benchmarks.measure import GOES_ON, read_results, record_to_go_on, todays_result
from benchmarks.options import Choice, complaints, planned
from benchmarks.pairs_account import Account
from phalanx.local.this_machine import LocalAws

_DEADLINE_S = 600.0
_LEFT = re.compile(r"\b(?:cr|i|vpc)-[0-9a-f]+|pairs")
_REFUSED = re.compile(r"(?:phalanx\.yaml:\d+: )?[a-z_]+: \S")


@dataclass
class Result:
    """What became of a choice. `refused`: the sentence of `plan`; `problems` is empty on success."""

    number: int
    choice: Choice
    refused: str = ""
    problems: list[str] = field(default_factory=list)
    took_s: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Return one line for people."""
        if self.problems:
            return "; ".join(self.problems)
        return f"refused: {self.refused}" if self.refused else "ready, and gone after `down`"


def accepts(choice: Mapping[str, Any]) -> bool:
    """Whether `plan` accepts a choice on AWS and in the local cloud."""
    return bool(planned(choice) and planned(choice, "local"))


@functools.cache
def array(seed: int) -> Array:
    """Return the choices that contain every pair of options which `plan` accepts."""
    return cover(accepts, seed)


def text(choice: Choice) -> str:
    """Return phalanx.yaml for the local cloud, with two nodes at most, which all must be ready."""
    nodes = min(2, choice.get("nodes", 2))
    given = {"name": "pairs", "cloud": "local", **choice, "nodes": nodes, "min": min(nodes, choice.get("min", nodes))}
    return "".join(f"{_key(name)}: {json.dumps(_shown(name, value))}\n" for name, value in given.items())


def _key(name: str) -> str:
    return name.removesuffix("_s")


def _shown(name: str, value: Any) -> Any:
    return f"{value}s" if name.endswith("_s") else value


def try_out(number: int, choice: Choice) -> Result:
    """Lint a choice's document, bring it up in a local cloud of its own, run a job, and take it down."""
    result, plan = Result(number, choice), planned(choice)
    if plan is None:
        result.problems.append("no plan accepts it")
        return result
    result.problems += [f"cfn-lint: {one}" for one in complaints(plan)]
    with local_cluster(text(choice)) as cluster:
        try:
            _Trial(cluster, result).run()
        except Exception as error:
            result.problems.append(f"the trial itself: {error!r}")
    return result


class _Trial:
    """One cluster's life."""

    def __init__(self, cluster: LocalCluster, result: Result) -> None:
        self._cluster, self._result, self._choice = cluster, result, result.choice
        self._region = self._choice.get("region", "us-east-1")
        self._life = Life(cluster, min(2, self._choice.get("nodes", 2)), _DEADLINE_S, 1.0)

    def run(self) -> None:
        self._cluster.begin()
        account = self._account()
        written = self._cluster.file.read_text()
        account.make(written, "access" in self._choice.get("network", {}))
        for named, made in account.ids.items():
            written = written.replace(named, made)
        self._cluster.file.write_text(written)
        if self._plan():
            self._live()
        self._step("leave nothing", lambda: self._leave(account))

    def _account(self) -> Account:
        api = LocalAws(self._region)
        found = self._cluster.endpoint()
        assert found is not None
        api.endpoint = found
        zone = next(iter(self._choice.get("zones", ())), f"{self._region}a")
        return Account(api, zone, ends_with_it=self._choice.get("keep") == "no")

    def _plan(self) -> bool:
        """Whether `plan` accepts the file; what it refuses must be named by its key."""
        done = self._cluster.phalanx("plan")
        if done.returncode == 0:
            return True
        said = done.stderr.rpartition("error: ")[2].strip()
        if _REFUSED.match(said):
            self._result.refused = said[:600]
        else:
            self._result.problems.append(f"`plan` ended with {done.returncode}: {said[:600]}")
        return False

    def _live(self) -> None:
        if self._step("up", self._life.up):
            self._step("nodes", lambda: self._life.wait_for(lambda ready: len(ready) == self._life.nodes))
            self._step("run", self._life.run)
        own = "file_system" in self._choice
        self._step("down", lambda: self._life.command("down", "--yes", *(() if own else ("--keep", "no"))))

    def _step(self, name: str, step: Any) -> bool:
        began = time.monotonic()
        if wrong := outcome(step):
            self._result.problems.append(f"{name}: {wrong}")
        self._result.took_s[name] = round(time.monotonic() - began, 1)
        return not wrong

    def _leave(self, account: Account) -> str:
        """Return what is left of the cluster: in its region, in what it used of others', and on this machine."""
        reaped = self._life.command("reap", "--cloud", "local", "--region", self._region)
        processes = self._cluster.processes()
        account.delete()
        stopped = self._cluster.phalanx("local", "stop")
        if stopped.returncode and account.block:
            if set(_LEFT.findall(stopped.stderr)) != {account.block}:
                return f"{reaped}; {stopped.stderr}"
            stopped = self._cluster.phalanx("local", "stop", "--force")
        return reaped or (stopped.stderr if stopped.returncode else "") or self._life.left(processes)


def report(made: Array, results: Sequence[dict[str, Any]], seed: int) -> str:
    """Summarize: how many choices came up, which were refused and why, and which pairs are in those that came up."""
    failed, refused = [one for one in results if one["problems"]], [one for one in results if one["refused"]]
    up = [one for one in results if not one["problems"] and not one["refused"]]
    proved = {pair for one in up for pair in contained(one["choice"])} & made.covered
    commits = ", ".join(dict.fromkeys(one["commit"] for one in results))
    lines = [
        f"{datetime.date.today().isoformat()}: {len(results)} of {len(made.choices)} choices of options, seed {seed},"
        f" {os.cpu_count()} cores, commits {commits}",
        f"  pairs of options: {len(made.covered) + len(made.refused)}, of which a plan accepts {len(made.covered)}"
        f" and refuses {len(made.refused)}",
        f"  choices that came up, ran a job and left nothing, and whose documents passed cfn-lint: {len(up)};"
        f" they contain {len(proved)} of the accepted pairs",
        f"  refused by `plan` in the local cloud: {len(refused)}; failed: {len(failed)}",
        *(f"  {one['number']}, refused: {one['refused']}" for one in refused),
        *(f"  {one['number']}, commit {one['commit']}: {'; '.join(one['problems'])[:900]}" for one in failed),
        "  pairs that no plan accepts:",
        *sorted(f"    {' with '.join(f'{_key(k)}: {v[:60]}' for k, v in sorted(pair))}" for pair in made.refused),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, help="number of choices; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of one choice, of which nothing is recorded")
    parser.add_argument("--at-once", type=int, default=1, help="number of clusters at a time, which mostly wait")
    parser.add_argument("--record", type=Path, help=GOES_ON)
    arguments = parser.parse_args()
    # In the background of a script SIGINT is ignored, and the command lines started here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    made = array(arguments.seed)
    if arguments.only is not None:
        result = try_out(arguments.only, made.choices[arguments.only])
        print(text(result.choice) + result.verdict)
        raise SystemExit(bool(result.problems))
    numbered = list(enumerate(made.choices))[: arguments.count]

    def left(record: Path) -> list[tuple[int, Choice]]:
        known = [one["choice"] for one in read_results(record)]
        return [one for one in numbered if json.loads(json.dumps(one[1])) not in known]

    record = arguments.record or record_to_go_on("pairs", len(numbered), lambda path: len(left(path)))
    results = _try_all(left(record), record, arguments.at_once)
    print("\n" + (shown := report(made, results, arguments.seed)), end="")
    todays_result("pairs", "txt").write_text(shown)
    raise SystemExit(any(one["problems"] for one in results))


def _try_all(left: Sequence[tuple[int, Choice]], record: Path, at_once: int) -> list[dict[str, Any]]:
    """Try what is left, and append each result to the record; return all of it."""
    results, pool = read_results(record), ThreadPoolExecutor(at_once)
    try:
        for ended in as_completed([pool.submit(try_out, *one) for one in left]):
            result = ended.result()
            print(f"{result.number:>4}  {sum(result.took_s.values()):>6.1f} s  {result.verdict}", flush=True)
            results.append({**asdict(result), "commit": str(machine()["commit"])[:12]})
            with record.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
    finally:
        pool.shutdown(cancel_futures=True)
    return results


if __name__ == "__main__":
    main()
