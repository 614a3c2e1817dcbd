"""Lives of jobs under `--stall`: none that does anything may be called stalled, and each that stands still must be.

`make soak PART=stall COUNT=200`: what a life does follows from the seed. Four run at once.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.__main__ import machine
from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import todays_result

WHOLE, AT_ONCE = 200, 4
NODES, RANKS = 2, 4
STALL_S = 10
_ENDS_WITHIN_S = 240.0
_EXIT_STALLED = 124
# Kinds of lives; the second group stands still at its end.
LIVELY = ("steps", "lines", "computes", "reads", "imports", "waits", "one writes", "ends early")
STILL = ("sleep", "lock", "leave", "stop")

PROGRAM = """
import os, random, signal, sys, threading, time
kind, seed, long_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
rank = int(os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
chance, begin, step = random.Random(seed * 100 + rank), time.monotonic(), 0

def all_reduce():
    time.sleep(1000)

def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire()

def compute():
    sum(range(chance.randrange(10**5, 10**6)))

def read():
    for name in os.listdir(os.path.dirname(os.__file__))[:50]:
        try:
            open(os.path.join(os.path.dirname(os.__file__), name), "rb").read()
        except OSError:
            pass

while time.monotonic() < begin + long_s:
    step += 1
    if kind == "steps" or kind in ("sleep", "leave"):
        print("step", step, flush=True)
    elif kind in ("lines", "lock", "stop") or (kind == "one writes" and rank == 0):
        print("number", step, flush=True)
    if kind == "reads":
        read()
    elif kind == "imports":
        for name in ("json", "email", "http.client", "decimal", "unittest"):
            __import__(name)
        [sys.modules.pop(name) for name in ("decimal", "unittest")]
        time.sleep(0.3)
    elif kind == "waits":
        [time.sleep, lambda s: threading.Event().wait(s)][step % 2](chance.uniform(0.1, 1.5))
    else:
        compute()
    if kind not in ("computes", "reads"):
        time.sleep(chance.uniform(0.05, 3.0 if kind != "waits" else 0.5))
    if kind == "ends early" and rank and step > 3:
        sys.exit()

if kind in ("sleep", "lock", "leave", "stop"):
    if rank == 1:
        ways = {"sleep": all_reduce, "lock": lock, "leave": sys.exit}
        ways.get(kind, lambda: os.kill(os.getpid(), signal.SIGSTOP))()
    all_reduce()
"""


@dataclass(frozen=True)
class Life:
    """A job; `long_s` is how long it does anything."""

    number: int
    kind: str
    launcher: str
    long_s: float


def plan(count: int, seed: int) -> Iterator[Life]:
    """Draw the lives: the same ones for the same seed. One in four stands still."""
    chance = random.Random(seed)
    for number in range(count):
        kind = chance.choice(LIVELY if number % 4 else STILL)
        yield Life(number, kind, chance.choice(("exec", "exec", "mpi")), round(chance.uniform(5, 40), 1))


def live(cluster: BenchCluster, life: Life, seed: int) -> str:
    """Run one life; return what was wrong, or ""."""
    step = ("--step", r"step (\d+)") if life.kind in ("steps", "sleep", "leave") else ()
    what = ("--stall", f"{STALL_S}s", "--on-stall", "stop", "--grace", "2s", *step, "--detach", "--")
    program = ("python3", "life.py", life.kind, str(seed * 1000 + life.number), str(life.long_s))
    options = ("--launcher", life.launcher, "-n", str(RANKS), "-N", str(RANKS // NODES))
    job = cluster.output("run", *options, *what, *program, timeout_s=120).strip()
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while (status := _status(cluster, job))["state"] in ("pending", "running"):
        if time.monotonic() > deadline:
            cluster.phalanx("stop", job)
            return f"it did not end: {status['message']}"
        time.sleep(2)
    stalled = status["exit_code"] == _EXIT_STALLED
    if stalled != (life.kind in STILL) or (not stalled and status["state"] != "succeeded"):
        return f"{status['state']}: {status['message']}"
    if stalled and life.kind != "sleep" and "rank 1 " not in status["message"]:
        return f"the odd rank is not named: {status['message']}"
    return "" if status["verified"] else "it is not verified"


def _status(cluster: BenchCluster, job: str) -> dict[str, Any]:
    found = json.loads(cluster.output("jobs", "--json", timeout_s=120))
    return next(one for one in found if one["id"] == job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=WHOLE, help="of lives")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    lives = list(plan(arguments.count, arguments.seed))
    wrong: dict[int, str] = {}
    with bench_cluster(NODES, 4 * RANKS) as cluster, ThreadPoolExecutor(AT_ONCE) as pool:
        (cluster.directory / "life.py").write_text(PROGRAM)
        cluster.up()
        bring = cluster.output("run", "--launcher", "exec", "-n", "1", "--detach", "--", "sleep", "600", timeout_s=120)
        cluster.output("stacks", bring.strip(), timeout_s=300)  # brings py-spy
        cluster.phalanx("stop", bring.strip())
        for life, problem in zip(lives, pool.map(lambda one: live(cluster, one, arguments.seed), lives), strict=True):
            print(
                f"{life.number:>4}  {life.kind:<11}{life.launcher:<5}{life.long_s:>6} s  {problem or 'passed'}",
                flush=True,
            )
            if problem:
                wrong[life.number] = problem
        cluster.down()
    text = "\n".join(summary(lives, wrong, arguments.seed))
    print(text)
    if len(lives) >= WHOLE // 2:
        todays_result("stall", "txt").write_text(text + "\n")
    raise SystemExit(bool(wrong))


def summary(lives: list[Life], wrong: dict[int, str], seed: int) -> Iterator[str]:
    """Yield the lines of the result."""
    here = machine()
    commit, today = str(here["commit"])[:12], datetime.date.today().isoformat()
    yield f"{today}: {len(lives)} lives with seed {seed}, --stall {STALL_S}s, {here['cores']} cores, commit {commit}"
    yield f"  {len(wrong)} wrong"
    for kind, count in Counter(life.kind for life in lives).items():
        failed = sum(life.kind == kind for life in lives if life.number in wrong)
        yield f"  {kind:<11}{count:>4} lives, {failed} wrong"
    for number, problem in wrong.items():
        yield f"  life {number} ({lives[number].kind}, {lives[number].launcher}): {problem}"


if __name__ == "__main__":
    main()
