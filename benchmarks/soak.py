"""Kill something at a random moment, again and again: `python -m benchmarks.soak --trials 200 --seed 1`.

After each trial the job must have ended in time and say truthfully how, no process of it may be left on any node, and
no process of another job or of the user may be touched.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.__main__ import machine
from benchmarks.cluster import bench_cluster
from benchmarks.measure import ROOT
from benchmarks.soak_cluster import NODES, SoakCluster

LAUNCHERS = ("mpi", "exec", "torchrun")
FENCED_AFTER_S = 32.0
# phalanx itself is not held to the figures while a torchrun of three cores starts: the machine is.
_SETTLES_WITHIN_S = 60.0


@dataclass(frozen=True)
class Trial:
    """What is killed, on which node, and how long after the job was submitted."""

    number: int
    launcher: str
    fault: str
    node: str
    delay_s: float


@dataclass
class Result:
    """`problems` is empty when all held; took_s: from the kill to the job's final state."""

    trial: Trial
    job_id: str = ""
    state: str = ""
    message: str = ""
    took_s: float | None = None
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Fault:
    """How it is done (returns when it happened, None: nothing was there), and what the job must then say."""

    strike: Callable[[SoakCluster, Trial, str], float | None]
    states: tuple[str, ...]
    words: tuple[str, ...]  # one of them is in the message
    within_s: float
    launchers: tuple[str, ...] = LAUNCHERS
    breaks_node: bool = False


def _rank(cluster: SoakCluster, trial: Trial, job_id: str) -> float | None:
    return cluster.kill(trial.node, f"PHALANX_JOB={job_id}", "python", "rank.py")


def _starter(cluster: SoakCluster, trial: Trial, job_id: str) -> float | None:
    return cluster.kill(trial.node, "", "runner.pyz", "starter", job_id)


def _daemon(cluster: SoakCluster, trial: Trial, job_id: str) -> float | None:
    word = "orted" if trial.launcher == "mpi" else "torchrun"
    node = NODES[1] if trial.launcher == "mpi" and trial.node == NODES[0] else trial.node
    return cluster.kill(node, f"PHALANX_JOB={job_id}", word)


def _mpiexec(cluster: SoakCluster, _trial: Trial, job_id: str) -> float | None:
    return cluster.kill(NODES[0], f"PHALANX_JOB={job_id}", "mpiexec")


def _runner(cluster: SoakCluster, _trial: Trial, job_id: str) -> float | None:
    look = f"import json; print(json.load(open('/efs/.phalanx/jobs/{job_id}/state.json'))['runner']['pid'])"
    said = cluster.on(NODES[0], f'kill -9 $(python3 -c "{look}") && date +%s.%N')
    return float(said) if said else None


def _stop(cluster: SoakCluster, _trial: Trial, job_id: str) -> float | None:
    struck = time.time()
    cluster.phalanx("stop", job_id)
    return struck


def _node_clean(cluster: SoakCluster, trial: Trial, _job_id: str) -> float | None:
    cluster.fault({"kill": {"instance_id": cluster.instance(trial.node)}})
    return time.time()


def _node_silent(cluster: SoakCluster, trial: Trial, _job_id: str) -> float | None:
    cluster.fault({"kill": {"instance_id": cluster.instance(trial.node), "silent": True, "noticed_after_s": 20}})
    return time.time()


def _partition(cluster: SoakCluster, trial: Trial, _job_id: str) -> float | None:
    cluster.fault({"partition": {"instance_id": cluster.instance(trial.node), "cut": True}})
    return time.time()


FAILED, STOPPED, LOST = ("failed",), ("stopped",), ("lost",)
_GONE = ("was lost", "can't be reached")
FAULTS = {
    "rank": Fault(_rank, FAILED, ("was ended by SIGKILL",), 5),
    "starter": Fault(_starter, FAILED, _GONE, 5),
    "daemon": Fault(_daemon, FAILED, ("torchrun", "mpiexec", "rank"), 5, ("mpi", "torchrun")),
    "mpiexec": Fault(_mpiexec, FAILED, ("mpiexec",), 5, ("mpi",)),
    "runner": Fault(_runner, LOST, ("runner died",), 5),
    "stop": Fault(_stop, STOPPED, ("on request",), 10),
    "cli": Fault(_stop, STOPPED, ("on request",), 10),
    "ctrl-c": Fault(_stop, STOPPED, ("on request",), 10),
    "node, clean": Fault(_node_clean, FAILED, _GONE, 15, breaks_node=True),
    "node, silent": Fault(_node_silent, FAILED, _GONE, 15, breaks_node=True),
    "partition": Fault(_partition, FAILED, _GONE, 15, breaks_node=True),
}
WEIGHTS = {"node, clean": 1, "node, silent": 1, "partition": 1}


def plan(trials: int, seed: int) -> list[Trial]:
    """The same trials for the same seed."""
    chance = random.Random(seed)
    planned = []
    for number in range(trials):
        fault = chance.choices(list(FAULTS), [WEIGHTS.get(name, 2) for name in FAULTS])[0]
        launcher = chance.choices(FAULTS[fault].launchers, [2, 2, 1][: len(FAULTS[fault].launchers)])[0]
        # The first node is the head: its death is another story (its jobs are told as lost by the next one).
        node = chance.choice(NODES[1:] if FAULTS[fault].breaks_node else NODES)
        planned.append(Trial(number, launcher, fault, node, round(chance.uniform(0, 3), 2)))
    return planned


def run_trial(cluster: SoakCluster, trial: Trial, bystander: str) -> Result:
    """One trial, and all that must hold after it."""
    result, fault = Result(trial), FAULTS[trial.fault]
    token = str(100_000 + trial.number)
    typed = _submit(cluster, trial, token, result)
    struck_at = None
    if result.job_id:
        time.sleep(trial.delay_s)
        _interrupt(typed, trial, result)
        struck_at = fault.strike(cluster, trial, result.job_id)
    if struck_at is None:
        result.problems.append("there was nothing to kill")
        cluster.phalanx("stop", result.job_id)
    _judge_end(cluster, fault, result, struck_at)
    if trial.fault == "partition":
        _end_partition(cluster, trial, struck_at or time.time())
    _judge_nodes(cluster, fault, result, token, bystander)
    return result


def _submit(cluster: SoakCluster, trial: Trial, token: str, result: Result) -> subprocess.Popen[str] | None:
    words = ("run", "--launcher", trial.launcher, "-N", "1", "--directory", str(cluster.code))
    command = ("--", "python", "rank.py", token)
    if trial.fault not in ("cli", "ctrl-c"):
        result.job_id = cluster.phalanx(*words, "--detach", *command).stdout.strip()
        return None
    before = cluster.newest()
    typed = cluster.start(*words, *command)
    deadline = time.monotonic() + 20
    while (newest := cluster.newest()) == before and time.monotonic() < deadline:
        time.sleep(0.1)
    result.job_id = newest
    return typed


def _interrupt(typed: subprocess.Popen[str] | None, trial: Trial, result: Result) -> None:
    """Kill the command line, which must change nothing; or Ctrl-C, which must end the job with it."""
    if typed is None:
        return
    typed.send_signal(signal.SIGINT if trial.fault == "ctrl-c" else signal.SIGKILL)
    said = typed.communicate(timeout=60)[1]
    if trial.fault == "ctrl-c" and typed.returncode != 130:
        result.problems.append(f"Ctrl-C: exit code {typed.returncode}: {said[-300:]}")


def _judge_end(cluster: SoakCluster, fault: Fault, result: Result, struck_at: float | None) -> None:
    deadline = time.monotonic() + _SETTLES_WITHIN_S
    job: dict[str, Any] = {}
    while time.monotonic() < deadline and not (job := cluster.job(result.job_id)).get("ended_at"):
        time.sleep(0.3)
    result.state, result.message = job.get("state", "unknown"), job.get("message", "")
    if result.state not in fault.states or not any(word in result.message for word in fault.words):
        result.problems.append(f"its end is told as {result.state}: {result.message}")
    if struck_at and job.get("ended_at"):
        result.took_s = round(job["ended_at"] - struck_at, 2)
        if result.took_s > fault.within_s:
            result.problems.append(f"it took {result.took_s} s, {fault.within_s:g} s are allowed")
    unproved = [one["node"] for one in job.get("nodes", []) if not one["clean"]]
    if unproved and unproved != [result.trial.node]:
        result.problems.append(f"its end is not proved on {', '.join(unproved)}")


def _end_partition(cluster: SoakCluster, trial: Trial, struck_at: float) -> None:
    """Once the node has fenced itself it comes back, unless it was replaced meanwhile."""
    time.sleep(max(0.0, struck_at + FENCED_AFTER_S - time.time()))
    try:
        cluster.fault({"partition": {"instance_id": cluster.instance(trial.node), "cut": False}})
    except OSError:
        return


def _judge_nodes(cluster: SoakCluster, fault: Fault, result: Result, token: str, bystander: str) -> None:
    broken = result.trial.node if fault.breaks_node else None
    if broken and not cluster.heal():
        result.problems.append("not every node came back within 90 s")
    for node, left in cluster.left_of(result.job_id, token).items():
        result.problems.append(f"left on {node}: {left.strip()}")
    missing = cluster.missing_bystanders(broken)
    if missing:
        result.problems.append(f"others' processes are gone on {', '.join(missing)}")
    if not broken and cluster.job(bystander).get("state") != "running":
        result.problems.append("the other job no longer runs")


def soak(trials: Sequence[Trial]) -> list[Result]:
    """Run them on a cluster of their own, and show each as it ends."""
    results = []
    with bench_cluster() as bench:
        cluster = SoakCluster(bench)
        bench.up()
        bystander = cluster.post_bystanders()
        for trial in trials:
            results.append(run_trial(cluster, trial, bystander))
            _show(results[-1])
            if FAULTS[trial.fault].breaks_node or results[-1].problems:
                cluster.phalanx("stop", bystander)
                bystander = cluster.post_bystanders()
        bench.down()
    return results


def _show(result: Result) -> None:
    trial = result.trial
    took = "-" if result.took_s is None else f"{result.took_s:.1f} s"
    verdict = "; ".join(result.problems) or "held"
    print(f"{trial.number:>4}  {trial.launcher:<9}{trial.fault:<14}{trial.node[-1]}  {took:>7}  {verdict}", flush=True)


def write(results: Sequence[Result], seed: int) -> None:
    """benchmarks/results/soak-<date>.json and the same as text."""
    today = datetime.date.today().isoformat()
    failures = [asdict(result) for result in results if result.problems]
    slowest: dict[str, float] = {}
    for result in results:
        slowest[result.trial.fault] = max(slowest.get(result.trial.fault, 0.0), result.took_s or 0.0)
    counts = Counter(result.trial.fault for result in results)
    document = {
        "date": today,
        "machine": machine(),
        "seed": seed,
        "trials": len(results),
        "failed": len(failures),
        "faults": {name: {"trials": counts[name], "slowest_s": slowest[name]} for name in sorted(counts)},
        "failures": failures,
    }
    folder = ROOT / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"soak-{today}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    lines = [f"{today}: {len(results)} trials with seed {seed}, {len(failures)} failed"]
    lines += [f"  {name:<14}{counts[name]:>4} trials, the slowest end {slowest[name]:.1f} s" for name in sorted(counts)]
    lines += [f"  trial {one['trial']['number']}: {'; '.join(one['problems'])}" for one in failures]
    (folder / f"soak-{today}.txt").write_text("\n".join(lines) + "\n")
    print("\n" + "\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS, help="this one alone")
    arguments = parser.parse_args()
    trials = plan(arguments.trials, arguments.seed)
    if arguments.fault:
        trials = [replace(trial, fault=arguments.fault) for trial in trials]
    results = soak(trials)
    write(results, arguments.seed)
    raise SystemExit(any(result.problems for result in results))


if __name__ == "__main__":
    main()
