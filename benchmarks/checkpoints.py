"""Kill jobs that keep checkpoints, again and again: `make soak PART=checkpoints COUNT=30 SEED=1`.

It goes on where an earlier one was interrupted: each job's result is in the record.

The examples for PyTorch, TensorFlow and JAX train with --restarts and a directory for checkpoints, on the shared
directory or in S3. At seeded moments a rank, a starter, the runner or a node is killed. Every restart must go on where
the last checkpoint was: at most one interval, an epoch, is trained again. In the end all epochs are done, and what is
in S3 is enough to go on without the shared directory.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.__main__ import machine
from benchmarks.cluster import bench_cluster
from benchmarks.measure import GOES_ON, ROOT, read_results, record_to_go_on
from benchmarks.soak_cluster import NODES, Seen, SoakCluster, is_runner, verb_of

WHOLE = 30  # kills
KILLS = 5  # of each job
S3 = "s3://soak/runs"
HOMES = "/efs/.phalanx/s3"
_PROGRESS_WITHIN_S = 300.0
_ENDS_WITHIN_S = 900.0
_ENVIRONMENT_WITHIN_S = 900.0
_LOOK_EVERY_S = 0.5
VICTIMS = {"rank": 4, "starter": 3, "runner": 2, "node": 2}


@dataclass(frozen=True)
class Example:
    """An example, how it is started, and how it shows that it has begun (`begins`) or finished an epoch."""

    name: str
    options: tuple[str, ...]
    arguments: tuple[str, ...]
    line: str
    epochs: int
    begins: bool = False


ON_TWO = ("-n", "2", "-N", "1", "--env", "OMP_NUM_THREADS=1")
EXAMPLES = (
    Example(
        "fashion_mnist",
        ("--launcher", "torchrun", *ON_TWO),
        ("--images", "3000", "--batch-size", "100", "--hidden", "16"),
        r"^\[0\] (\d+) +[\d.]+ .*$",
        12,
    ),
    Example(
        "jax_fashion_mnist", ("--recipe", "jax", *ON_TWO), ("--images", "3000"), r"^\[0\] epoch (\d+): loss .*$", 150
    ),
    Example(
        "tensorflow_fashion_mnist",
        ("--recipe", "tensorflow", *ON_TWO),
        ("--images", "3000"),
        r"^\[\S* ?0\] Epoch (\d+)/\d+$",
        30,
        begins=True,
    ),
)


@dataclass
class Result:
    """A job that was killed again and again: what was killed after which epoch, and the problems."""

    example: str
    checkpoint: str
    kills: list[str] = field(default_factory=list)
    lost: int = 0
    problems: list[str] = field(default_factory=list)


def epochs(example: Example, text: str, before: set[str]) -> list[int]:
    """Return the epochs that an attempt has begun. PyTorch's prints those of its checkpoint again, word by word."""
    found = [(line[0], int(line[1])) for line in re.finditer(example.line, text, re.MULTILINE)]
    new = [number for line, number in found if example.begins or line not in before]
    before.update(line for line, _ in found)
    return new


def judge(example: Example, attempts: Sequence[str]) -> tuple[int, list[str]]:
    """Return the most epochs that a restart trained again, and what is wrong with the attempts' output."""
    finished, most, before, problems = 0, 0, set[str](), list[str]()
    allowed = 0 if example.begins else 1  # one epoch may be shown and not be saved
    every = [epochs(example, text, before) for text in attempts]
    for number, trained in enumerate(every):
        if not trained:
            continue
        if trained != list(range(trained[0], trained[0] + len(trained))):
            problems.append(f"attempt {number} trained the epochs {trained}")
        most = max(most, finished + 1 - trained[0])
        # A restart that found nothing to train shows that the epoch which had begun was finished.
        finished = trained[-1] - example.begins * any(every[number + 1 :])
    if finished != example.epochs:
        problems.append(f"it finished {finished} of {example.epochs} epochs")
    if most > allowed:
        problems.append(f"a restart trained {most} finished epochs again")
    return most, problems


class Killer:
    """Kills parts of one job, each time after it got further."""

    def __init__(self, cluster: SoakCluster, job_id: str, chance: random.Random) -> None:
        self._cluster, self._job_id, self._chance = cluster, job_id, chance

    def strike(self) -> str:
        """Kill something of the job; return what."""
        victim = self._chance.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        self._cluster.forget_nodes()
        if victim == "runner":
            self._cluster.kill(NODES[0], lambda one: is_runner(one, self._job_id))
            return victim
        node = self._chance.choice(self._nodes() or NODES[1:])
        if victim == "node":
            node = node if node != NODES[0] else NODES[1]
            self._cluster.fault({"kill": {"instance_id": self._cluster.nodes()[node]["instance_id"]}})
            self._cluster.heal(node)
        else:
            self._cluster.kill(node, self._is_rank if victim == "rank" else self._is_starter)
        return f"{victim} on {node[-1]}"

    def _nodes(self) -> list[str]:
        hosts = {one.hostname for one in self._cluster.processes() if self._is_rank(one)}
        known = self._cluster.nodes().items()
        return sorted(name for name, one in known if f"ip-{one['address'].replace('.', '-')}" in hosts)

    def _is_rank(self, one: Seen) -> bool:
        return one.job == self._job_id and "train.py" in one.argv and one.argv[0].startswith("python")

    def _is_starter(self, one: Seen) -> bool:
        return verb_of(one.argv) == ("starter", self._job_id)


def run_job(cluster: SoakCluster, example: Example, checkpoint: str, kills: int, chance: random.Random) -> Result:
    """Train an example to its end, with so many kills."""
    result = Result(example.name, checkpoint)
    options = ("--directory", str(ROOT / "examples" / example.name), *example.options, "--restarts", "50")
    command = ("train.py", *example.arguments, "--epochs", str(example.epochs))
    python = () if "torchrun" in options else ("python",)
    job_id = cluster.phalanx("run", *options, "--checkpoint", checkpoint, "--detach", "--", *python, *command)
    if job_id.returncode:
        result.problems.append(job_id.stderr[-500:])
        return result
    _strike(cluster, example, job_id.stdout.strip(), kills, chance, result)
    _judge_end(cluster, example, job_id.stdout.strip(), result)
    if checkpoint.startswith(S3):
        _judge_copy(cluster, example, job_id.stdout.strip(), result)
    return result


def _strike(
    cluster: SoakCluster, example: Example, job_id: str, kills: int, chance: random.Random, result: Result
) -> None:
    killer, struck = Killer(cluster, job_id, chance), -1
    for _ in range(kills):
        deadline = time.monotonic() + _PROGRESS_WITHIN_S
        while not _gets_on(cluster, example, job_id, struck) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        job = cluster.job(job_id)
        if job.get("ended_at"):
            return
        struck = job.get("attempt", 0)
        time.sleep(chance.uniform(0, 3))
        result.kills.append(killer.strike())


def _gets_on(cluster: SoakCluster, example: Example, job_id: str, struck: int) -> bool:
    """Whether the job has ended, or shows an epoch in an attempt after the one that was struck."""
    job = cluster.job(job_id)
    if job.get("ended_at") or job.get("attempt", 0) <= struck:
        return bool(job.get("ended_at"))
    return bool(re.search(example.line, cluster.phalanx("logs", job_id).stdout, re.MULTILINE))


def _judge_end(cluster: SoakCluster, example: Example, job_id: str, result: Result) -> None:
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while not (job := cluster.job(job_id)).get("ended_at") and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    if job.get("state") != "succeeded":
        result.problems.append(f"it {job.get('state')}: {job.get('message')}")
        cluster.phalanx("stop", job_id)
    attempts = [_attempt(cluster, job_id, number) for number in range(job.get("attempt", 0) + 1)]
    result.lost, problems = judge(example, attempts)
    result.problems += problems


def _attempt(cluster: SoakCluster, job_id: str, number: int) -> str:
    return cluster.phalanx("logs", job_id, "--attempt", str(number)).stdout


def _judge_copy(cluster: SoakCluster, example: Example, job_id: str, result: Result) -> None:
    """Go on without the shared directory: nothing may be left to train."""
    cluster.phalanx("ssh", "head", "--", f"rm -rf {HOMES}")
    directory = ("--directory", str(ROOT / "examples" / example.name))
    again = cluster.phalanx("run", "--resume", job_id, *directory, timeout_s=_PROGRESS_WITHIN_S)
    before = {line[0] for line in re.finditer(example.line, _attempt(cluster, job_id, 0), re.MULTILINE)}
    trained = [] if "torchrun" in example.options else epochs(example, again.stdout, before)
    if again.returncode or trained:
        result.problems.append(f"from S3: exit code {again.returncode}, epochs {trained}: {again.stderr[-300:]}")


def soak(kills: int, seed: int, record: Path) -> list[dict[str, Any]]:
    """Run one job after another until so many kills are recorded; what is in the record is over."""
    results = of_seed(record, seed)
    begun = len(results)
    if killed(results) >= kills:
        return results
    with bench_cluster() as bench:
        cluster = SoakCluster(bench)
        (bench.directory / "empty").write_text("")
        with (bench.directory / "phalanx.yaml").open("a") as file:
            file.write(f"data:\n  runs: {S3} rw\n")
        cluster.phalanx("data", "put", "empty", "s3://soak/empty")
        bench.up()
        # A job whose ranks are too quick has no kill.
        while (left := kills - killed(results)) > 0 and len(results) < begun + kills:
            number = len(results)
            chance = random.Random(f"{seed}/{number}")
            example, checkpoint = EXAMPLES[number % len(EXAMPLES)], chance.choice((f"soak/{number}", f"{S3}/{number}"))
            result = run_job(cluster, example, checkpoint, min(KILLS, left), chance)
            _show(result)
            results.append({"seed": seed, "number": number, **asdict(result), "commit": str(machine()["commit"])[:12]})
            with record.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
        bench.down()
    return results


def of_seed(record: Path, seed: int) -> list[dict[str, Any]]:
    """Read the results of earlier jobs of this seed."""
    return [one for one in read_results(record) if one["seed"] == seed]


def killed(results: Sequence[dict[str, Any]]) -> int:
    return sum(len(one["kills"]) for one in results)


def _show(one: Result) -> None:
    verdict = "; ".join(one.problems) or "passed"
    kills = ", ".join(one.kills)
    print(f"{one.example:<26}{one.checkpoint:<20}{one.lost} epoch(s) again  {verdict}  ({kills})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=WHOLE, help="of kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, help=GOES_ON)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    count, seed = arguments.count, arguments.seed
    record = arguments.record or record_to_go_on("checkpoints", count, lambda kept: killed(of_seed(kept, seed)))
    results = soak(count, seed, record)
    failed = sum(bool(one["problems"]) for one in results)
    print(json.dumps({"seed": seed, "jobs": len(results), "kills": killed(results), "failed": failed}))
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
