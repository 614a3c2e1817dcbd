"""Take clusters through AWS's weather, again and again: `make soak PART=weather COUNT=100`.

A trial is a cluster's whole life under a seed: up, run, a replacement, scale, down. Each step must succeed within its
deadline, or fail for a true reason, and after `down` nothing may be left. Every second trial has all kinds of weather
at once (a share of them with GPUs), and the others one kind each in turn; with --alone, all have one kind. A life with
`storage` is watched while the shared directory is away, for five minutes at speed 1.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import absence
from benchmarks.__main__ import machine
from benchmarks.absence import Absence
from benchmarks.drill.life import Life, outcome
from benchmarks.drill.local_cluster import LocalCluster, local_cluster
from benchmarks.drill.trial import busy
from benchmarks.measure import GOES_ON, record_to_go_on, todays_result
from localcloud.weather.forecast import KINDS
from phalanx.local import images

_SEEDS = 1000  # weathers of one seed, one for each trial
WHOLE = 100  # trials of a soak whose result is kept
NODES = 3
ALL = "all"
# Only nodes with a full operating system install packages: lives of this kind have one, if its image is built here.
_PACKAGES = "packages"
_IMAGE = os.environ.get("PHALANX_FULL_IMAGE", "ubuntu-24.04")
# The shared directory is away only by itself: as long as it is, no job runs, and the other kinds would prove nothing.
_CHANGING = [*(kind for kind in KINDS if kind != _PACKAGES), absence.KIND]
_GPUS = "gpus"
_GPU_TYPE, _GPUS_OF_TYPE = "g4dn.12xlarge", 4
_SHARE_WITH_GPUS = 0.25  # of the lives in all weather
# A machine that has lost a GPU is missing for good: that is the truth, and ends a life early.
_LOST_GPU = re.compile(r"only \d of \d GPUs work")
# The longest weather, for two launches one after another; and what a machine with nothing else to do needs besides.
_WEATHER_S = 2 * 240.0
_CALM_S = 120.0
_BOOT_S = 60.0
# systemd, cloud-init, and 450 MB of packages on each node.
_FULL_BOOT_S = 300.0
# A failure says nothing when the machine has become so much busier than it was when the deadlines were set.
_BUSIER = 2.0
SPEC = (
    "name: bench\ncloud: local\nnodes: {nodes}\nmin: {nodes}\ntype: c5.large\nslots: 2\nkeep: no\n"
    "node_timeout: {node_timeout_s:.0f}s\n"
)


@dataclass
class Trial:
    """A cluster's life in the weather of a seed. `problems` is empty on success; `took_s` maps its steps to seconds.

    `seen`: what was seen of an absence of the shared directory. `reason`: the true reason that ended it early. `busy`:
    how many tasks there were for each CPU when it began (1: at most one). `void`: why it proves nothing.
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
    seen: absence.Seen | None = None

    @property
    def deadline_s(self) -> float:
        """How long a step may take: longer on a busy machine."""
        return _CALM_S * self.busy + self._more_s * self.busy + _WEATHER_S / self.speed

    @property
    def node_timeout_s(self) -> float:
        return _BOOT_S * self.busy + self._more_s * self.busy + _WEATHER_S / 2 / self.speed

    @property
    def has_gpus(self) -> bool:
        """Whether the nodes have GPUs: all in lives of that kind, and a share of those in all weather."""
        by_seed = random.Random(f"{self.seed}/gpus").random() < _SHARE_WITH_GPUS
        return self.kind == _GPUS or (self.kind == ALL and by_seed)

    @property
    def _more_s(self) -> float:
        return _FULL_BOOT_S if self.kind == _PACKAGES else 0.0

    @property
    def failed(self) -> bool:
        return bool(self.problems) and not self.void


def changing() -> list[str]:
    """Return the kinds that take turns on this machine."""
    return [*_CHANGING, *([_PACKAGES] if any(image.use == f"{_IMAGE}-full" for image in images.built()) else [])]


def plan(count: int, seed: int, speed: float, kinds: Sequence[str], is_alone: bool = False) -> list[Trial]:
    """Return the trials: the same ones for the same seed. With `is_alone`, none has all kinds."""
    turns = kinds if is_alone else [turn for kind in kinds for turn in (ALL, kind)]
    chosen = [turns[number % len(turns)] for number in range(count)]
    return [Trial(number, seed * _SEEDS + number, kind, speed) for number, kind in enumerate(chosen)]


class WeatherLife(Life):
    """A cluster's life in the weather of a trial."""

    def __init__(self, cluster: LocalCluster, trial: Trial) -> None:
        super().__init__(cluster, NODES, trial.deadline_s, trial.speed)
        self._trial = trial
        if trial.has_gpus:
            cluster.file.write_text(cluster.file.read_text().replace("type: c5.large\n", f"type: {_GPU_TYPE}\n"))
            cluster.phalanx("local", "gpus", str(_GPUS_OF_TYPE))
        if trial.kind == _PACKAGES:
            cluster.file.write_text(f"{cluster.file.read_text()}image: {_IMAGE}-full\n")
        only = () if trial.kind == ALL else ("--only", trial.kind)
        cluster.phalanx("local", "weather", str(trial.seed), "--speed", f"{trial.speed:g}", *only)

    def steps(self) -> dict[str, Callable[[], str]]:
        away = {"absence": self.absence} if self._trial.kind == absence.KIND else {}
        rest = {"replacement": self.replace, "scale": self.scale, "down": self.down}
        return {"up": self.up, "run": self.run, **away, **rest}

    def absence(self) -> str:
        """Watch the cluster while its shared directory is away."""
        watching = Absence(self.cluster, self._trial.speed, lambda: absence.KIND in self.struck())
        self._trial.seen = watching.seen
        return watching.watch()


def run_trial(trial: Trial, keep: Path | None) -> Trial:
    """Live a cluster's life up to the first step that goes wrong, and take it down in any case. Return the trial."""
    trial.busy, trial.commit = round(busy(), 1), str(machine()["commit"])[:12]
    with local_cluster(SPEC.format(nodes=NODES, node_timeout_s=trial.node_timeout_s)) as cluster:
        life = WeatherLife(cluster, trial)
        for name, step in life.steps().items():
            if (trial.problems or trial.reason) and name != "down":
                continue
            started = time.monotonic()
            wrong = outcome(step)
            trial.took_s[name] = round(time.monotonic() - started, 1)
            if trial.has_gpus and (lost := _LOST_GPU.search(wrong)):
                trial.reason = f"{name}: {lost[0]}"
            else:
                trial.problems += [f"{name}: {wrong}"] if wrong else []
        trial.struck = life.struck()
        if trial.problems and busy() > _BUSIER * trial.busy:
            trial.void = f"the machine had {busy():.1f} tasks for each CPU in the end, and {trial.busy:g} when it began"
        if trial.problems and keep:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"weather-{trial.seed}-{trial.kind}.log").write_text(cluster.log())
    return trial


def _show(trial: Trial) -> None:
    took = "  ".join(f"{name} {seconds:.0f}" for name, seconds in trial.took_s.items())
    verdict = "; ".join([*([f"void: {trial.void}"] if trial.void else []), *trial.problems]) or "passed"
    verdict += f" ({trial.reason})" if trial.reason else ""
    print(f"{trial.number:>4}  {trial.kind:<18}{took:<56}{sum(trial.struck.values()):>4} struck  {verdict}", flush=True)


def read(record: Path) -> list[Trial]:
    """Read the results of earlier trials."""
    lines = record.read_text().splitlines() if record.exists() else []
    return [_trial(json.loads(line)) for line in lines]


def _trial(kept: dict[str, Any]) -> Trial:
    return Trial(**{**kept, "seen": absence.Seen(**kept["seen"]) if kept.get("seen") else None})


def over(trials: Sequence[Trial], seed: int, speed: float) -> int:
    """Count the trials of a soak of this seed and speed."""
    return sum((trial.seed // _SEEDS, trial.speed) == (seed, speed) for trial in trials)


def missing(planned: Sequence[Trial], trials: Sequence[Trial]) -> list[Trial]:
    """Return what is planned and not over."""
    known = {(trial.seed, trial.kind, trial.speed) for trial in trials}
    return [trial for trial in planned if (trial.seed, trial.kind, trial.speed) not in known]


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
        *_absences(trials),
        *(f"  {name:<18}at most {_slowest_s(trials, name):.0f} s" for name in ("up", "replacement", "scale", "down")),
        *(
            f"  trial {trial.seed} ({trial.kind}, commit {trial.commit}): {'; '.join(trial.problems)}"
            for trial in failed
        ),
        *(f"  trial {trial.seed} ({trial.kind}), void: {trial.void}" for trial in void),
    ]
    return "\n".join(lines) + "\n"


def _absences(trials: Sequence[Trial]) -> list[str]:
    """Describe the absences that struck while jobs ran, a line for each."""
    seen = [(trial.seed, trial.seen) for trial in trials if trial.seen and trial.seen.away_s]
    return [
        f"  trial {seed}: the shared directory was away for {one.away_s:.0f} s, {one.looks} looks meanwhile;"
        f" the slowest answers: {', '.join(f'{name} {seconds:.1f} s' for name, seconds in one.slowest_s.items())}"
        for seed, one in seen
    ]


def _slowest_s(trials: Sequence[Trial], step: str) -> float:
    return max((trial.took_s.get(step, 0.0) for trial in trials), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=WHOLE, help="number of clusters")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speed", type=float, default=10.0, help="divide the weather's delays by this")
    parser.add_argument("--at-once", type=int, default=1, help="number of clusters at a time, which mostly wait")
    parser.add_argument(
        "--only", choices=(*KINDS, absence.KIND), action="append", help="beside all kinds together, only these"
    )
    parser.add_argument("--alone", action="store_true", help="no life with all kinds together")
    parser.add_argument("--record", type=Path, help=GOES_ON)
    parser.add_argument("--logs", type=Path, help="a directory for the local cloud's logs of trials that failed")
    arguments = parser.parse_args()
    # In the background of a script SIGINT is ignored, and the command lines started here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    count, seed, speed = arguments.count, arguments.seed, arguments.speed
    planned = plan(count, seed, speed, arguments.only or changing(), arguments.alone)
    record = arguments.record or record_to_go_on("weather", count, lambda kept: over(read(kept), seed, speed))
    trials = read(record)
    left = missing(planned, trials)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for one in as_completed([pool.submit(run_trial, trial, arguments.logs) for trial in left]):
            trial = one.result()
            _show(trial)
            trials.append(trial)
            with record.open("a") as file:
                file.write(json.dumps(asdict(trial)) + "\n")
    text = report(trials)
    print("\n" + text, end="")
    if len(trials) >= WHOLE:
        todays_result("weather", "txt").write_text(text)
    raise SystemExit(any(trial.failed for trial in trials))


if __name__ == "__main__":
    main()
