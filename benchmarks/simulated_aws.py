"""DynamoDB's and SQS's answers to many simulated nodes, on a simulated clock: 10 % of the reads are throttled."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from phalanx.node import wire
from phalanx.node.settings import ON_AWS

CALL_S = 0.01
PARTITION_UNITS_PER_S = 3000
_UNIT_BYTES = 4096
_TWICE, _THROTTLED = 0.01, 0.1


class Clock:
    """The simulated time, and what happens at which time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self.now_s

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when_s, self.now_s), next(self._order), action))

    def run_until(self, end_s: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Let everything happen that is due until `end_s`, or until it is enough."""
        while self._events and self._events[0][0] <= end_s and not enough():
            self.now_s, _, action = heapq.heappop(self._events)
            action()
        if not enough():
            self.now_s = max(self.now_s, end_s)


@dataclass
class Aws:
    """The table and the queue. `calls` and `delay_s` are of the node that calls; `units`: read units by key and s."""

    clock: Clock
    chance: random.Random
    epoch: str = ""
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    units: defaultdict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    refused: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)
    instances: tuple[str, ...] = ()

    def read(self, keys: Sequence[str], consistent: bool, caller: Caller) -> list[dict[str, Any]]:
        """Read items by one call, as the agent's client does, which repeats a throttled call."""
        for count in itertools.count():
            caller.called()
            if self.chance.random() >= _THROTTLED:
                found = [self._taken(key, consistent, caller) for key in keys]
                if any(item is not None for item in found):
                    return [item or {} for item in found]
            self.refused += 1
            with mock.patch.object(wire, "time", SimpleNamespace(sleep=caller.wait)):
                wire.pause(count, ON_AWS.pause_s)
        raise AssertionError

    def _taken(self, key: str, consistent: bool, caller: Caller) -> dict[str, Any] | None:
        """Return an item and charge its partition, or None if that is too busy."""
        item = self.items.get(key, {})
        units = max(1, math.ceil(_bytes_of(item) / _UNIT_BYTES)) / (1 if consistent else 2)
        at = (key, int(self.clock.now_s + caller.delay_s))
        if self.units[at] + units > PARTITION_UNITS_PER_S:
            return None
        self.units[at] += units
        return dict(item)

    def send(self, message: dict[str, Any], delay_s: float) -> None:
        for _ in range(2 if self.chance.random() < _TWICE else 1):
            self.clock.at(self.clock.now_s + delay_s + CALL_S, lambda: self.messages.append(message))


def _bytes_of(item: dict[str, Any]) -> int:
    return sum(len(name) + len(value if isinstance(value, bytes) else str(value)) for name, value in item.items())


@dataclass
class Caller:
    """A node's calls, and the time that they have taken since the last turn."""

    calls: int = 0
    delay_s: float = 0.0

    def called(self) -> None:
        self.calls += 1
        self.wait(CALL_S)

    def wait(self, seconds: float) -> None:
        self.delay_s += seconds
