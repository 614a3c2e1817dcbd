"""Kill something at a random moment, again and again: `make soak COUNT=200 SEED=1`.

After each trial the job must have ended in time and report correctly how and where, no process of it may be left on
any node, and no process of another job or of the user may be affected. Late ends are counted separately, with the load,
because a machine that is busy with something else causes them, too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import soak_phases
from benchmarks.__main__ import machine
from benchmarks.cluster import bench_cluster
from benchmarks.measure import ROOT
from benchmarks.soak_cluster import BYSTANDER, BYSTANDER_JOB, NODES, SoakCluster
from benchmarks.soak_faults import FAULTS, GONE, IMPORTS, LAUNCHERS, ON_TWO_NODES, RECIPES, Trial, possible_nodes

WHOLE = 200  # trials of a soak whose result is kept
# How long a node that is cut off from the runner may keep processes, and a margin for a busy machine.
_GONE_WITHIN_S = 45.0
_SETTLES_WITHIN_S = 90.0
_TYPED_ENDS_WITHIN_S = 180.0
_ENVIRONMENT_WITHIN_S = 900.0


@dataclass
class Result:
    """The result of a trial: `problems` is empty on success; took_s is from the fault to the job's final state."""

    trial: Trial
    job_id: str = ""
    state: str = ""
    message: str = ""
    took_s: float | None = None
    is_late: bool = False
    load: float = 0.0
    problems: list[str] = field(default_factory=list)


def plan(trials: int, seed: int, launchers: Sequence[str], faults: Sequence[str]) -> list[Trial]:
    """Draw the trials: the same ones for the same seed, launchers and faults."""
    chance = random.Random(seed)
    planned = []
    for number in range(trials):
        fault = chance.choices(faults, [FAULTS[name].weight for name in faults])[0]
        able = [name for name in FAULTS[fault].launchers if name in launchers] or list(FAULTS[fault].launchers)
        launcher = chance.choices(able, [LAUNCHERS[name] for name in able])[0]
        node = chance.choice(possible_nodes(fault, launcher))
        planned.append(Trial(number, launcher, fault, node, round(chance.uniform(0, 3), 2)))
    return planned


def run_trial(cluster: SoakCluster, trial: Trial, bystander: str) -> Result:
    """Run one trial and check everything that must hold after it."""
    result, fault = Result(trial), FAULTS[trial.fault]
    token = str(100_000 + trial.number)
    cluster.forget_nodes()
    if phase := soak_phases.named(trial.fault):
        return _run_at_phase(cluster, result, phase[1], token, bystander)
    typed = _submit(cluster, trial, token, result)
    struck_at = None
    if result.job_id:
        time.sleep(trial.delay_s)
        _interrupt(typed, trial, result)
        struck_at = fault.strike(cluster, trial, result.job_id)
    if struck_at is None:
        result.problems.append("there was nothing to kill")
        cluster.phalanx("stop", result.job_id)
    _judge_end(cluster, result, struck_at)
    _judge_nodes(cluster, result, token, bystander)
    result.load = round(os.getloadavg()[0], 1)
    return result


def _run_at_phase(cluster: SoakCluster, result: Result, phase: soak_phases.Phase, token: str, bystander: str) -> Result:
    """Run a trial whose job is followed by its user, who must hear the truth as well."""
    trial, known = result.trial, cluster.job_ids()
    arguments = ("run", *options(trial.launcher), "-N", "1", "--directory", str(phase.begins(cluster)))
    typed = cluster.start(*arguments, "--", *program(trial.launcher, token))
    result.job_id = cluster.wait_for_new_job(known)
    struck_at = soak_phases.strike(cluster, trial.fault, result.job_id) if result.job_id else None
    try:
        shown = typed.communicate(timeout=_TYPED_ENDS_WITHIN_S)[1]
    except subprocess.TimeoutExpired:
        typed.kill()
        shown = typed.communicate()[1]
        result.problems.append(f"`run` did not end within {_TYPED_ENDS_WITHIN_S:g} s: {shown[-300:]}")
        cluster.phalanx("stop", result.job_id)
    if struck_at is None:
        result.problems.append(f"it never came to that: {shown[-300:]}")
    if FAULTS[trial.fault].breaks_node and not cluster.heal(trial.node):
        result.problems.append("not every node came back within 120 s")
    _judge_end(cluster, result, struck_at, shown)
    _judge_nodes(cluster, result, token, bystander)
    result.load = round(os.getloadavg()[0], 1)
    return result


def _submit(cluster: SoakCluster, trial: Trial, token: str, result: Result) -> subprocess.Popen[str] | None:
    arguments = ("run", *options(trial.launcher), "-N", "1", "--directory", str(cluster.code))
    command = ("--", *program(trial.launcher, token))
    if trial.fault not in ("cli", "ctrl-c"):
        done = cluster.phalanx(*arguments, "--detach", *command)
        result.job_id = done.stdout.strip()
        if not result.job_id:
            result.problems.append(f"the job can't be submitted: {done.stderr[-300:]}")
        return None
    before = cluster.newest()
    typed = cluster.start(*arguments, *command)
    deadline = time.monotonic() + 30
    while (newest := cluster.newest()) == before and time.monotonic() < deadline:
        time.sleep(0.1)
    result.job_id = newest
    return typed


def options(launcher: str) -> tuple[str, ...]:
    """Return the options of `phalanx run` for a job of this launcher."""
    nodes = ("-n", "2") if launcher in ON_TWO_NODES else ()
    return ("--launcher", launcher, *nodes, *(("--recipe", RECIPES[launcher]) if launcher in RECIPES else ()))


def program(launcher: str, token: str) -> tuple[str, ...]:
    """Return the command of the job's ranks."""
    return ("python", "rank.py", token, IMPORTS.get(launcher, ""))


def _interrupt(typed: subprocess.Popen[str] | None, trial: Trial, result: Result) -> None:
    """Kill the command line, which must not affect the job, or press Ctrl-C, which must end the job."""
    if typed is None:
        return
    typed.send_signal(signal.SIGINT if trial.fault == "ctrl-c" else signal.SIGKILL)
    shown = typed.communicate(timeout=90)[1]
    if trial.fault == "ctrl-c" and typed.returncode != 130:
        result.problems.append(f"Ctrl-C: exit code {typed.returncode}: {shown[-300:]}")


def _judge_end(cluster: SoakCluster, result: Result, struck_at: float | None, shown: str = "") -> None:
    fault = FAULTS[result.trial.fault]
    deadline = time.monotonic() + _SETTLES_WITHIN_S
    job: dict[str, Any] = {}
    if any(message in shown for message in soak_phases.REFUSALS) and result.job_id not in cluster.job_ids():
        result.state, result.message = "not taken", shown.strip()
        if result.state not in fault.states:
            result.problems.append(f"it should have been taken: {shown}")
        return
    while time.monotonic() < deadline and not (job := cluster.job(result.job_id)).get("ended_at"):
        if fault.messages == GONE and struck_at and (job.get("started_at") or 0.0) > struck_at:
            # No rank had started, and the roster was new or changed: the job reconnected, or runs on the next roster.
            cluster.phalanx("stop", result.job_id)
            result.state, result.message = "went on", "no rank had started"
            return
        time.sleep(0.2)
    result.state, result.message = job.get("state", "unknown"), job.get("message", "")
    # mpiexec runs on the head, and its own message names the child that it lost.
    is_named = not fault.names_node or result.trial.node in result.message or "mpiexec on" in result.message
    if result.state not in fault.states or not is_named or not any(word in result.message for word in fault.messages):
        result.problems.append(f"its end is reported as {result.state}: {result.message}")
    if struck_at and job.get("ended_at"):
        result.took_s = round(job["ended_at"] - struck_at, 2)
        result.is_late = result.took_s > fault.within_s
    unproved = [f"{one['node']}: {one['message']}" for one in job.get("nodes", []) if not one["clean"]]
    if not fault.breaks_node and unproved:
        result.problems.append(f"its end is not verified on {'; '.join(unproved)}")


def _judge_nodes(cluster: SoakCluster, result: Result, token: str, bystander: str) -> None:
    """Check that nothing of the job is left: at once if its end is verified, within the fence's time on a lost node."""
    breaks = FAULTS[result.trial.fault].breaks_node
    deadline = time.monotonic() + (_GONE_WITHIN_S if breaks else 0.0)
    while (left := cluster.left_of(result.job_id, token)) and time.monotonic() < deadline:
        time.sleep(0.5)
    if left:
        result.problems.append(f"left: {'; '.join(left)}")
    lived = cluster.bystanders()
    fewest = len(NODES) - breaks
    if lived[BYSTANDER] < fewest or (not breaks and lived[BYSTANDER_JOB] < fewest):
        result.problems.append(f"others' processes are gone: {lived} are left of {len(NODES)}")
    if not breaks and cluster.job(bystander).get("state") != "running":
        result.problems.append("the other job no longer runs")


def soak(trials: Sequence[Trial], record: Path | None) -> list[Result]:
    """Run the trials on a new cluster; print each result and append it to the record."""
    results: list[Result] = []
    with bench_cluster() as bench:
        cluster = SoakCluster(bench)
        bench.up()
        make_environments(cluster, {trial.launcher for trial in trials} & RECIPES.keys())
        bystander = cluster.post_bystanders()
        for trial in trials:
            results.append(run_trial(cluster, trial, bystander))
            breaks = FAULTS[trial.fault].breaks_node
            if breaks and not soak_phases.named(trial.fault) and not cluster.heal(trial.node):
                results[-1].problems.append("not every node came back within 120 s")
            _show(results[-1])
            if record:
                with record.open("a") as file:
                    file.write(json.dumps(asdict(results[-1])) + "\n")
            if breaks or results[-1].problems:
                cluster.phalanx("stop", bystander)
                bystander = cluster.post_bystanders()
        bench.down()
    return results


def make_environments(cluster: SoakCluster, launchers: Collection[str]) -> None:
    """Make the environments before the first trial, which takes minutes."""
    for launcher in launchers:
        arguments = ("run", *options(launcher), "-N", "1", "--directory", str(cluster.code), "--", "true")
        done = cluster.phalanx(*arguments, timeout_s=_ENVIRONMENT_WITHIN_S)
        if done.returncode:
            raise SystemExit(f"there is no environment for {launcher}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _show(result: Result) -> None:
    trial = result.trial
    took = "-" if result.took_s is None else f"{result.took_s:.1f} s"
    late = f"late at load {result.load:g}" if result.is_late else ""
    verdict = "; ".join([*result.problems, *filter(None, [late])]) or "passed"
    print(f"{trial.number:>4}  {trial.launcher:<11}{trial.fault:<14}{trial.node[-1]}  {took:>7}  {verdict}", flush=True)


def read(record: Path) -> list[Result]:
    """Read the results of earlier parts of the same trials, in order."""
    found = [json.loads(line) for line in record.read_text().splitlines()]
    results = [Result(**{**one, "trial": Trial(**one["trial"])}) for one in found]
    return sorted(results, key=lambda result: result.trial.number)


def report(results: Sequence[Result], seed: int) -> None:
    """Print a summary; write benchmarks/results/soak-<date>.json and .txt for a complete soak."""
    document = _document(results, seed)
    text = "\n".join(_lines(document))
    print("\n" + text)
    if len(results) < WHOLE:
        return
    folder = ROOT / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"soak-{document['date']}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    (folder / f"soak-{document['date']}.txt").write_text(text + "\n")


def _document(results: Sequence[Result], seed: int) -> dict[str, Any]:
    failures = [asdict(result) for result in results if result.problems]
    late = [asdict(result) for result in results if result.is_late and not result.problems]
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "seed": seed,
        "trials": len(results),
        "failed": len(failures),
        "late": len(late),
        "load": round(sum(result.load for result in results) / max(1, len(results)), 1),
        "launchers": Counter(result.trial.launcher for result in results),
        "faults": _by_fault(results),
        "failures": failures,
        "late_ones": late,
    }


def _by_fault(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    counts = Counter(result.trial.fault for result in results)
    return {
        name: {
            "trials": counts[name],
            "slowest_s": max((result.took_s or 0.0 for result in results if result.trial.fault == name), default=0.0),
            "within_s": FAULTS[name].within_s,
        }
        for name in sorted(counts)
    }


def _lines(document: dict[str, Any]) -> list[str]:
    commit = document["machine"]["commit"][:12]
    return [
        f"{document['date']}: {document['trials']} trials with seed {document['seed']}, commit {commit}",
        f"  {document['failed']} failed, {document['late']} were late, at an average load of {document['load']:g}"
        f" on {document['machine']['cores']} cores",
        "  " + ", ".join(f"{name} {count}" for name, count in document["launchers"].items()),
        *(
            f"  {name:<14}{one['trials']:>4} trials, the slowest end {one['slowest_s']:.1f} s of {one['within_s']:g} s"
            for name, one in document["faults"].items()
        ),
        *(f"  trial {one['trial']['number']}: {'; '.join(one['problems'])}" for one in document["failures"]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=WHOLE, help="of trials")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="start with trial N of this seed")
    parser.add_argument("--record", type=Path, help="a file that combines parts (--first, --count) into one result")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="only these; no result is written")
    parser.add_argument("--launcher", choices=LAUNCHERS, action="append", help="only these; no result is written")
    arguments = parser.parse_args()
    launchers, faults = arguments.launcher or list(LAUNCHERS), arguments.fault or list(FAULTS)
    trials = plan(arguments.first + arguments.count, arguments.seed, launchers, faults)[arguments.first :]
    # In the background of a script SIGINT is ignored, and the command lines started here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    results = soak(trials, arguments.record)
    if arguments.record:
        results = read(arguments.record)
    if not arguments.launcher and not arguments.fault:
        report(results, arguments.seed)
    raise SystemExit(any(result.problems for result in results))


if __name__ == "__main__":
    main()
