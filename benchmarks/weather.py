"""Take clusters through AWS's weather, again and again: `make soak PART=weather COUNT=100`.

A trial is a cluster's whole life under a seed: up, run, a replacement, scale, down. Each step must succeed within its
deadline, or fail for a true reason, and after `down` nothing may be left. Every second trial has all kinds of weather
at once, and the others one kind each in turn.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import boto3

from benchmarks.__main__ import machine
from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import ROOT
from benchmarks.soak_cluster import SoakCluster
from phalanx.localcloud.weather.forecast import KINDS

_SEEDS = 1000  # weathers of one seed, one for each trial
WHOLE = 100  # trials of a soak whose result is kept
NODES = 3
ALL = "all"
# Packages are installed by nodes with a full operating system only.
_CHANGING = [kind for kind in KINDS if kind != "packages"]
_GPUS = "gpus"
_GPU_TYPE, _GPUS_OF_TYPE = "g4dn.12xlarge", 4
# A machine that has lost a GPU is missing for good: that is the truth, and ends a life early.
_LOST_GPU = re.compile(r"only \d of \d GPUs work")
# EC2 notices a machine that dies silently after minutes (docs/aws-behaviour.md 3.16).
_NOTICED_AFTER_S = 120.0
# The longest weather, for two launches one after another; and what a machine with nothing else to do needs besides.
_WEATHER_S = 2 * 240.0
_CALM_S = 120.0
_BOOT_S = 60.0
# A failure says nothing when the machine has become so much busier than it was when the deadlines were set.
_BUSIER = 2.0
# What a command says of a node that stands still (the weather's stalls).
_NAMES = ("deeplearning-worker", "the head")


@dataclass
class Trial:
    """A cluster's life in the weather of a seed. `problems` is empty on success; `took_s` maps its steps to seconds.

    `reason`: the true reason that ended it early. `busy`: how many tasks there were for each CPU when it began (1: at
    most one). `void`: why it proves nothing.
    """

    number: int
    seed: int
    kind: str
    speed: float
    took_s: dict[str, float] = field(default_factory=dict)
    struck: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    commit: str = ""
    busy: float = 1.0
    void: str = ""
    reason: str = ""

    @property
    def deadline_s(self) -> float:
        """How long a step may take: longer on a busy machine."""
        return _CALM_S * self.busy + _WEATHER_S / self.speed

    @property
    def node_timeout_s(self) -> float:
        return _BOOT_S * self.busy + _WEATHER_S / 2 / self.speed

    @property
    def failed(self) -> bool:
        return bool(self.problems) and not self.void


def plan(count: int, seed: int, speed: float, kinds: Sequence[str]) -> list[Trial]:
    """Return the trials: the same ones for the same seed."""
    chosen = [ALL if number % 2 == 0 else kinds[number // 2 % len(kinds)] for number in range(count)]
    return [Trial(number, seed * _SEEDS + number, kind, speed) for number, kind in enumerate(chosen)]


class Life:
    """One cluster's life: each step is a command of its user, or an accident, and returns what is wrong, or ""."""

    def __init__(self, bench: BenchCluster, trial: Trial) -> None:
        self._cluster, self._trial = SoakCluster(bench), trial
        self._change_spec("keep: no\n", f"keep: no\nnode_timeout: {trial.node_timeout_s:.0f}s\n")
        if trial.kind == _GPUS:
            self._give_gpus()
        only = () if trial.kind == ALL else ("--only", trial.kind)
        self._cluster.phalanx("local", "weather", str(trial.seed), "--speed", f"{trial.speed:g}", *only)

    def _change_spec(self, old: str, new: str) -> None:
        spec = self._cluster.bench.directory / "phalanx.yaml"
        spec.write_text(spec.read_text().replace(old, new))

    def _give_gpus(self) -> None:
        self._change_spec("type: c5.large\n", f"type: {_GPU_TYPE}\n")
        self._cluster.phalanx("local", "gpus", str(_GPUS_OF_TYPE))

    def steps(self) -> dict[str, Callable[[], str]]:
        return {
            "up": lambda: self._command("up"),
            "run": self._run,
            "replacement": self._replace,
            "scale": self._scale,
            "down": self._down,
        }

    def _command(self, *arguments: str) -> str:
        try:
            done = self._cluster.phalanx(*arguments, timeout_s=self._trial.deadline_s)
        except subprocess.TimeoutExpired:
            return f"`{arguments[0]}` did not end within {self._trial.deadline_s:.0f} s"
        return "" if done.returncode == 0 else f"`{arguments[0]}` ended with {done.returncode}: {_reason(done.stderr)}"

    def _run(self) -> str:
        """Run a job; a node that stands still ends it with the node named, and the user starts it again."""
        deadline = time.monotonic() + self._trial.deadline_s
        arguments = ("run", "-N", "1", "--directory", str(self._cluster.code), "--", "hostname")
        while (wrong := self._command(*arguments)) and self._is_stalled(wrong) and time.monotonic() < deadline:
            time.sleep(1)
        return wrong

    def _is_stalled(self, wrong: str) -> bool:
        return bool(self.struck().get("stalls")) and any(name in wrong for name in _NAMES)

    def _replace(self) -> str:
        """End a worker's machine without notice; its name must come back on another machine."""
        before = self._ready()
        worker = max(before)
        death = {"instance_id": before[worker], "silent": True, "noticed_after_s": _NOTICED_AFTER_S / self._trial.speed}
        self._cluster.fault({"kill": death})
        return self._wait_for(lambda ready: len(ready) == NODES and ready.get(worker) != before[worker])

    def _scale(self) -> str:
        return self._command("scale", str(NODES + 1)) or self._wait_for(lambda ready: len(ready) == NODES + 1)

    def _down(self) -> str:
        """Delete the cluster; one whose creation failed is deleted already, and its local cloud has ended."""
        if not (self._cluster.bench.state / "local" / "endpoint.json").exists():
            return ""
        pids = self._cluster.bench.local_cloud_pids()
        wrong = self._command("down", "--yes")
        made_by_hand = self._made_by_hand()
        if wrong and made_by_hand and all(neighbour in wrong for neighbour in made_by_hand):
            # They are not phalanx's to delete: it names them, and their owner removes them.
            self._delete(made_by_hand)
            wrong = self._command("down", "--yes")
        return wrong or _still_alive(pids)

    def _made_by_hand(self) -> list[str]:
        return re.findall(r" weather: neighbours: (?:interface|security group) (\S+) ", self._log())

    def _delete(self, neighbours: Sequence[str]) -> None:
        endpoint = json.loads((self._cluster.bench.state / "local" / "endpoint.json").read_text())
        ec2: Any = boto3.client(
            "ec2",
            region_name="us-east-1",
            endpoint_url=endpoint["url"],
            aws_access_key_id=endpoint["access_key_id"],
            aws_secret_access_key=endpoint["secret_access_key"],
        )
        for made in neighbours:
            if made.startswith("eni-"):
                ec2.delete_network_interface(NetworkInterfaceId=made)
            else:
                ec2.delete_security_group(GroupId=made)

    def _ready(self) -> dict[str, str]:
        done = self._cluster.phalanx("nodes", "--json")
        listed: list[dict[str, Any]] = json.loads(done.stdout) if done.returncode == 0 and done.stdout else []
        return {node["name"]: node["instance_id"] for node in listed if node["state"] == "ready"}

    def _wait_for(self, is_done: Callable[[dict[str, str]], bool]) -> str:
        deadline = time.monotonic() + self._trial.deadline_s
        while not is_done(ready := self._ready()):
            if time.monotonic() > deadline:
                return f"after {self._trial.deadline_s:.0f} s the ready nodes are {ready}{self._missing()}"
            time.sleep(0.5)
        return ""

    def _missing(self) -> str:
        status = self._cluster.phalanx("status").stdout
        return "".join(f"; {line.strip()}" for line in status.splitlines() if line.lstrip().startswith("missing"))

    def struck(self) -> dict[str, int]:
        """Count by kind what the weather has done, from the local cloud's log."""
        return dict(Counter(re.findall(r" weather: ([a-z-]+): ", self._log())))

    def _log(self) -> str:
        log = self._cluster.bench.state / "local" / "localcloud.log"
        return log.read_text() if log.exists() else ""


def _reason(stderr: str) -> str:
    """Return the error itself, without the events before it and the boot logs after it."""
    return stderr.rpartition("error: ")[2].partition("\n---")[0].strip()[:500]


def _still_alive(pids: set[int]) -> str:
    deadline = time.monotonic() + 10
    while (left := {pid for pid in pids if Path(f"/proc/{pid}").exists()}) and time.monotonic() < deadline:
        time.sleep(0.1)
    return f"processes are left: {sorted(left)}" if left else ""


def busy() -> float:
    """Return how many tasks there are for each of this machine's CPUs, on average over the last minute; at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def run_trial(trial: Trial, keep: Path | None) -> Trial:
    """Live a cluster's life up to the first step that goes wrong, and take it down in any case. Return the trial."""
    trial.busy, trial.commit = round(busy(), 1), str(machine()["commit"])[:12]
    with bench_cluster(nodes=NODES) as bench:
        life = Life(bench, trial)
        for name, step in life.steps().items():
            if (trial.problems or trial.reason) and name != "down":
                continue
            started = time.monotonic()
            wrong = _outcome(step)
            trial.took_s[name] = round(time.monotonic() - started, 1)
            if trial.kind == _GPUS and (lost := _LOST_GPU.search(wrong)):
                trial.reason = f"{name}: {lost[0]}"
            else:
                trial.problems += [f"{name}: {wrong}"] if wrong else []
        trial.struck = life.struck()
        if trial.problems and busy() > _BUSIER * trial.busy:
            trial.void = f"the machine had {busy():.1f} tasks for each CPU in the end, and {trial.busy:g} when it began"
        if trial.problems and keep:
            _keep_log(bench, keep / f"weather-{trial.seed}-{trial.kind}.log")
    return trial


def _outcome(step: Callable[[], str]) -> str:
    try:
        return step()
    except subprocess.TimeoutExpired as late:
        return f"{' '.join(late.cmd[1:])} did not end within {late.timeout:.0f} s"


def _keep_log(bench: BenchCluster, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((bench.state / "local" / "localcloud.log").read_bytes())


def _show(trial: Trial) -> None:
    took = "  ".join(f"{name} {seconds:.0f}" for name, seconds in trial.took_s.items())
    verdict = "; ".join([*([f"void: {trial.void}"] if trial.void else []), *trial.problems]) or "passed"
    verdict += f" ({trial.reason})" if trial.reason else ""
    print(f"{trial.number:>4}  {trial.kind:<18}{took:<56}{sum(trial.struck.values()):>4} struck  {verdict}", flush=True)


def read(record: Path) -> list[Trial]:
    """Read the results of earlier trials."""
    lines = record.read_text().splitlines() if record.exists() else []
    return [Trial(**json.loads(line)) for line in lines]


def report(trials: Sequence[Trial]) -> str:
    failed, void = [trial for trial in trials if trial.failed], [trial for trial in trials if trial.void]
    struck = sum((Counter(trial.struck) for trial in trials), Counter[str]())
    commits = ", ".join(dict.fromkeys(trial.commit for trial in trials))
    seeds = " and ".join(dict.fromkeys(str(trial.seed // _SEEDS) for trial in trials))
    lines = [
        f"{datetime.date.today().isoformat()}: {len(trials)} clusters in the weather of seed {seeds}, at speed"
        f" {trials[0].speed if trials else 1:g}, {machine()['cores']} cores, commits {commits}",
        f"  {len(failed)} failed, {len(void)} void",
        *(f"  {kind:<18}struck {count} times" for kind, count in sorted(struck.items())),
        *(f"  {name:<18}at most {_slowest_s(trials, name):.0f} s" for name in ("up", "replacement", "scale", "down")),
        *(
            f"  trial {trial.seed} ({trial.kind}, commit {trial.commit}): {'; '.join(trial.problems)}"
            for trial in failed
        ),
        *(f"  trial {trial.seed} ({trial.kind}), void: {trial.void}" for trial in void),
    ]
    return "\n".join(lines) + "\n"


def _slowest_s(trials: Sequence[Trial], step: str) -> float:
    return max((trial.took_s.get(step, 0.0) for trial in trials), default=0.0)


def _result(ending: str) -> Path:
    return ROOT / "benchmarks" / "results" / f"weather-{datetime.date.today().isoformat()}.{ending}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=WHOLE, help="number of clusters")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speed", type=float, default=10.0, help="divide the weather's delays by this")
    parser.add_argument("--at-once", type=int, default=1, help="number of clusters at a time, which mostly wait")
    parser.add_argument("--only", choices=KINDS, action="append", help="beside all kinds together, only these")
    parser.add_argument(
        "--record", type=Path, default=_result("jsonl"), help="it gets each result; what is in it is over"
    )
    parser.add_argument("--logs", type=Path, help="a directory for the local cloud's logs of trials that failed")
    arguments = parser.parse_args()
    # In the background of a script SIGINT is ignored, and the command lines started here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    trials = read(arguments.record)
    done = {(trial.seed, trial.kind, trial.speed) for trial in trials}
    planned = plan(arguments.count, arguments.seed, arguments.speed, arguments.only or _CHANGING)
    left = [trial for trial in planned if (trial.seed, trial.kind, trial.speed) not in done]
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for one in as_completed([pool.submit(run_trial, trial, arguments.logs) for trial in left]):
            trial = one.result()
            _show(trial)
            trials.append(trial)
            with arguments.record.open("a") as file:
                file.write(json.dumps(asdict(trial)) + "\n")
    text = report(trials)
    print("\n" + text, end="")
    if len(trials) >= WHOLE:
        _result("txt").write_text(text)
    raise SystemExit(any(trial.failed for trial in trials))


if __name__ == "__main__":
    main()
