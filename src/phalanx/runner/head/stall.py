"""Finds a job that stands still, by its ranks' steps or output and stacks, and keeps the stacks that say why.

stacks/N.jsonl   in the job's directory: of attempt N, what `phalanx stacks` would have shown when it stalled, or before
                 ranks were killed that did not end
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid, parse
from phalanx.runner.files import record
from phalanx.runner.names import STALLED
from phalanx.runner.stack_report import JobStacks, RankStack, report, summary

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

    from phalanx.runner.head.starters import Starters
    from phalanx.runner.head.steps import Steps

SAVED = "stacks"
# A starter answers within 8 s.
_ANSWERED_WITHIN_S = 12.0
# Samples of the stacks in the time after which a job is stalled, how often at most, and how many must be equal.
_SAMPLES, _EVERY_S, _FEWEST = 10, 2.0, 3
# A rank that uses this part of a core, on a node that has more ranks than cores, computes.
_BUSY = 0.1
_MOST_LINES = 3
# Of the time in which GPUs must be idle.
_PARTS = 60
_LONGEST = 300
_WRITTEN_WITHIN_S = 2.0


class Sample:
    """The stacks of all ranks at one moment, as their nodes' answers come in."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.began_at = clock()
        self._answers: List[Dict[str, Any]] = []

    def take(self, line: bytes) -> bool:
        """Take an answer; return whether more are wanted. The first is the runner's own: which nodes it asks."""
        with suppress(Invalid):
            self._answers.append(parse(line))
        return not self.is_whole and not self.is_late

    @property
    def is_whole(self) -> bool:
        """Whether all nodes have answered."""
        asked = self._answers[0]["asked"] if self._answers else [""]
        return {*asked} <= {answer["node"] for answer in self._answers[1:]}

    @property
    def is_late(self) -> bool:
        """Whether a node has not answered for too long."""
        return self._clock() > self.began_at + _ANSWERED_WITHIN_S

    @property
    def found(self) -> JobStacks:
        """What the ranks do; none does anything that a node has reported in no valid way."""
        try:
            return report("", self._answers, _ANSWERED_WITHIN_S)
        except Invalid as error:
            return JobStacks("", (), (), {"a node": f"an invalid report of stacks: {error}"})

    @property
    def key(self) -> Dict[Any, Any]:
        """What every rank does, equal for samples between which nothing has happened; empty if there is no rank."""
        return {(one.node, one.rank): (one.pid, one.state in "Tt", _doing(one)) for one in self.found.ranks}

    def computes(self, before: Optional[Sample]) -> bool:
        """Whether all ranks use CPU time at one place, as those do that compute, and no other rank has ended.

        Ranks that wait for each other may use it, too. But then another one is elsewhere, or waits for something else.
        """
        found = self.found
        if len(found.groups()) != 1 or (found.ended and len(found.ranks) > 1):
            return False
        spent = {(one.node, one.rank): one.cpu_s for one in before.found.ranks} if before else {}
        least_s = _BUSY * (self.began_at - before.began_at) if before else 0.0
        return all(
            one.state == "R" or one.cpu_s - spent.get((one.node, one.rank), one.cpu_s) > least_s for one in found.ranks
        )

    def words(self) -> str:
        """Return who is where, the odd rank first."""
        found = self.found
        lines = [*summary(found, found.groups()), *(f"{node}: {why}" for node, why in found.silent.items())]
        # Frames are what the job's processes call them.
        text = "".join(letter if letter.isprintable() else "?" for letter in "; ".join(lines[:_MOST_LINES]))
        return text[:_LONGEST]

    def odd_rank(self) -> str:
        """Return the rank for which others wait: the first that has ended, or of the smallest group; "" without any."""
        found = self.found
        return [*found.ended, *(group[0].rank for group in found.groups()), ""][0]

    def save(self, directory: str, attempt: int, occasion: str) -> None:
        """Keep it in the job's directory. A shared directory that does not answer is not waited for."""
        if self._answers[1:]:
            first = {**self._answers[0], "problem": "", "at": time.time(), "occasion": occasion[:_LONGEST]}
            text = "".join(json.dumps(one) + "\n" for one in (first, *self._answers[1:]))
            path = os.path.join(directory, SAVED, f"{attempt}.jsonl")
            writer = threading.Thread(target=_write, args=(path, text), daemon=True)
            writer.start()
            writer.join(_WRITTEN_WITHIN_S)


class StallWatch:
    """Says when a job comes to a standstill, and when it goes on.

    With a step, that is `stall_s` after any rank's last step. Without, it is when no rank has written anything for as
    long, and all samples of their stacks in the meantime, three at least, were equal, and not of ranks that compute.
    """

    def __init__(
        self, stall_s: float, starters: Starters, steps: Steps, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stall_s, self._every_s = stall_s, max(_EVERY_S, stall_s / _SAMPLES)
        self._starters, self._steps, self._clock = starters, steps, clock
        self._moved_at = clock()  # when it was last seen to do anything
        self._sampled_at = 0.0
        self._sample: Optional[Sample] = None
        self._key: Dict[Any, Any] = {}
        self._equal = 0
        self._is_stalled = False
        self.last = Sample(clock)

    def check(self) -> Optional[str]:
        """Return what stands still, in words, once; "" when it goes on after that; None in between."""
        now, moved_at = self._clock(), self._moved_at
        self._moved_at = max(moved_at, self._steps.advanced_at or self._starters.wrote_at)
        if self._moved_at > moved_at:
            self._equal, self._key = 0, {}
            was_stalled, self._is_stalled = self._is_stalled, False
            if was_stalled:
                return ""
        if self._is_stalled and self._steps.advanced_at:
            return None
        is_over_time = now >= self._moved_at + self._stall_s
        if self._sample:
            return self._look_at(self._sample, is_over_time)
        if is_over_time if self._steps.advanced_at else now >= max(self._moved_at, self._sampled_at) + self._every_s:
            self._sample, self._sampled_at = Sample(self._clock), now
            self._starters.look(self._sample.take)
        return None

    def _look_at(self, sample: Sample, is_over_time: bool) -> Optional[str]:
        if not (sample.is_whole or sample.is_late):
            return None
        self._sample = None
        if self._moved_at > sample.began_at:
            return None
        if self._steps.advanced_at:
            return self._stalled(sample, "no step") if is_over_time else None
        if sample.is_whole and sample.key:
            return self._compare(sample)
        return None

    def _compare(self, sample: Sample) -> Optional[str]:
        """Compare a whole sample with those since the last output."""
        computes = sample.computes(self.last if self._equal else None)
        self.last = sample
        if sample.key != self._key or computes:
            was_stalled, self._is_stalled = self._is_stalled, False
            self._moved_at = sample.began_at if self._key else self._moved_at
            self._key, self._equal = sample.key, 1
            return "" if was_stalled else None
        self._equal += 1
        is_so = self._equal >= _FEWEST and self._clock() >= self._moved_at + self._stall_s
        return self._stalled(sample, "no output, and the same stacks,") if is_so and not self._is_stalled else None

    def _stalled(self, sample: Sample, what: str) -> str:
        self.last, self._is_stalled = sample, True
        return f"{STALLED}{what} for {self._clock() - self._moved_at:.0f} s; {sample.words()}"


class IdleGpus:
    """Says when a job's GPUs were less busy than `percent` on average in the last `within_s`, and when no longer.

    Where less than half of that time was measured, as while nvidia-smi does not answer, nothing is known.
    """

    def __init__(self, percent: float, within_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._percent, self._within_s, self._clock = percent, within_s, clock
        self._each_s = max(_EVERY_S, within_s / _PARTS)
        self._began_at = clock()
        self._parts: Dict[int, List[float]] = {}  # number of a part of the time → busy GPUs, and GPUs
        self._is_idle = False

    def add(self, busy_percent: float, gpus: float) -> None:
        """Add a sample of a node: the mean utilisation of so many GPUs."""
        part = self._parts.setdefault(int(self._clock() / self._each_s), [0.0, 0.0])
        part[0], part[1] = part[0] + busy_percent * gpus, part[1] + gpus

    def check(self) -> Optional[str]:
        """Return how busy they were, in words, once; "" when they are busy again; None in between."""
        now = self._clock()
        first = int((now - self._within_s) / self._each_s)
        self._parts = {number: part for number, part in self._parts.items() if number > first}
        count = sum(gpus for _, gpus in self._parts.values())
        if now < self._began_at + self._within_s or 2 * len(self._parts) * self._each_s < self._within_s or not count:
            return None
        busy = sum(part for part, _ in self._parts.values()) / count
        was_idle, self._is_idle = self._is_idle, busy < self._percent
        if self._is_idle == was_idle:
            return None
        return f"{STALLED}its GPUs were {busy:.0f} % busy in the last {self._within_s:.0f} s" if self._is_idle else ""


def _doing(one: RankStack) -> Any:
    """Return its stacks, and how often its main thread has waited: a loop that sleeps does so again and again.

    Without stacks, CPU time says whether it did anything; with them, ranks that wait may use all of it.
    """
    return one.switches, one.threads or (one.name, one.wchan, one.reads, one.cpu_s)


def bring_tracer(job_directory: str) -> None:
    """Have py-spy fetched, if it is missing, in a thread: without it there are only facts of the kernel."""
    tools = os.path.join(os.path.dirname(os.path.dirname(job_directory)), "tools")

    def fetch() -> None:
        with suppress(OSError):
            os.makedirs(tools, mode=0o700, exist_ok=True)
            if not any(name.startswith("py-spy-") for name in os.listdir(tools)):
                fetch_tracer(tools)

    threading.Thread(target=fetch, daemon=True).start()


def fetch_tracer(tools: str) -> None:
    """Bring py-spy into this directory. Raises OSError with the reason."""
    from phalanx.runner.environments import tracer_wheel  # here, because it is needed once on a cluster

    tracer_wheel.fetch(tools)


def saved(job_directory: str) -> List[str]:
    """Return the newest lines that were saved of a job; none if there are none, or they can't be read."""
    place = os.path.join(job_directory, SAVED)
    with suppress(OSError, Invalid):
        numbers = [int(name[:-6]) for name in os.listdir(place) if name[:-6].isdecimal() and name.endswith(".jsonl")]
        if numbers:
            return record.read_text(os.path.join(place, f"{max(numbers)}.jsonl")).splitlines()
    return []


def _write(path: str, text: str) -> None:
    with suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        # Not in place: a job could have put a link or a pipe there.
        beside = f"{path}.{os.getpid()}"
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text)
        os.replace(beside, path)
