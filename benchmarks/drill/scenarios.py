"""The scenarios of a drill: which fault strikes in which step of a cluster's life, and when, as a seed decides."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

UP, RUN, IDLE, REPLACEMENT, SCALE, DOWN = "up", "run", "idle", "replacement", "scale", "down"
HEAD, WORKER = "head", "worker"
NODES = 3
_DELAY_MOST_S = 3.0


@dataclass(frozen=True)
class Scenario:
    """One life of a cluster: `fault` strikes in `step`, on `victim` if it is about a machine.

    In `up` it strikes when there are `machines`, and then after `delay_s`; in the others after `delay_s` alone.
    `weather`: whether all kinds of weather come beside it.
    """

    number: int
    seed: int
    fault: str
    step: str
    victim: str
    machines: int
    delay_s: float
    weather: bool

    def __str__(self) -> str:
        of = f" of the {self.victim}" if self.fault.startswith(("dies", "is ", "stands", "loses", "fills")) else ""
        return f"{self.step}: {self.fault}{of}{', in bad weather' if self.weather else ''}"


def plan(count: int, seed: int, possible: Sequence[tuple[str, str]]) -> list[Scenario]:
    """Return the scenarios: number N is the same one for the same seed, whatever their count is.

    `possible`: faults with the steps in which each may strike. All come before one comes twice.
    """
    order = list(possible)
    random.Random(seed).shuffle(order)
    return [_scenario(number, seed, *order[number % len(order)]) for number in range(count)]


def _scenario(number: int, seed: int, fault: str, step: str) -> Scenario:
    generator = random.Random(f"{seed}:{number}")
    return Scenario(
        number,
        seed,
        fault,
        step,
        victim=generator.choice((HEAD, WORKER)) if fault != "is taken back" else WORKER,
        machines=generator.randint(0, NODES),
        delay_s=round(generator.uniform(0, _DELAY_MOST_S), 2),
        weather=generator.random() < 0.5,
    )
