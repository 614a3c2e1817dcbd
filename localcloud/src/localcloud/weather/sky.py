"""The weather of a running local cloud. Each decision is a hash, so it depends on no thread's timing.

A decision is drawn from the seed, the kind, what it concerns, and how many of these came before: the third launch in
the group demo-workers meets the same weather in every run with this seed.
"""

from __future__ import annotations

import logging
import random
import re
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, TypeVar

from localcloud.weather.forecast import Forecast

log = logging.getLogger(__name__)

_EVENTS_KEPT = 1000
# CloudFormation ends the names that it makes with a random part.
_RANDOM_END = re.compile(r"-[A-Za-z0-9]{12,13}$")
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
T = TypeVar("T")


class Draw:
    """One event's luck: its answers depend on the order in which they are asked for. `number` events came before."""

    def __init__(self, chance: random.Random, speed: float, number: int) -> None:
        self._chance, self._speed, self.number = chance, speed, number

    def happens(self, probability: float) -> bool:
        return self._chance.random() < probability

    def seconds(self, least: float, most: float) -> float:
        """Return a delay between two numbers of seconds, divided by the weather's speed."""
        return self._chance.uniform(least, most) / self._speed

    def choice(self, options: Sequence[T]) -> T:
        return self._chance.choice(options)


class Weather:
    """Draws the weather's decisions and remembers what struck. Without a forecast nothing happens."""

    def __init__(self, forecast: Forecast | None = None) -> None:
        self._lock = threading.Lock()
        self.events: deque[str] = deque(maxlen=_EVENTS_KEPT)
        self.change(forecast)

    def change(self, forecast: Forecast | None) -> None:
        """Begin this weather, as if nothing had happened before it; None calms it."""
        with self._lock:
            self.forecast = forecast
            self._counts: Counter[tuple[str, ...]] = Counter()
            self._names: dict[str, str] = {}
            self.events.clear()

    def draw(self, kind: str, *subject: str) -> Draw | None:
        """Return the luck of the next event of this kind that concerns `subject`; None unless the forecast has it."""
        forecast = self.forecast
        if forecast is None or kind not in forecast.kinds:
            return None
        about = (kind, *(self.name(part) for part in subject))
        with self._lock:
            number = self._counts[about]
            self._counts[about] += 1
        # A text seeds by SHA-512: the same in every process and on every machine.
        return Draw(random.Random("/".join((str(forecast.seed), *about, str(number)))), forecast.speed, number)

    @property
    def speed(self) -> float:
        """What the weather's delays are divided by; 1 in good weather."""
        return self.forecast.speed if self.forecast else 1.0

    @property
    def tag_key(self) -> str:
        """The tag that a tag policy forbids."""
        return self.forecast.tag_key if self.forecast else ""

    def scaled(self, seconds: float) -> float:
        """Return one of AWS's own delays, divided by the weather's speed."""
        return seconds / self.speed

    def forbids(self, rule: str) -> bool:
        """Whether the organisation has this rule (forecast.RULES)."""
        forecast = self.forecast
        return forecast is not None and rule in forecast.kinds

    def christen(self, instance_id: str, group: str) -> None:
        """Name an instance by its group and its place among the group's launches: its id is random."""
        with self._lock:
            self._counts["launched", group] += 1
            self._names[instance_id] = f"{group}#{self._counts['launched', group]}"

    def name(self, text: str) -> str:
        """Return a name without what is random in it."""
        known = _INSTANCE.sub(lambda found: self._names.get(found[0], "instance"), text)
        return _RANDOM_END.sub("", known)

    def struck(self, kind: str, what: str) -> None:
        """Record what the weather has done, for `localcloud weather` and the log."""
        self.events.append(f"{kind}: {self.name(what)}")
        log.info("weather: %s: %s", kind, what)

    def describe(self) -> dict[str, Any]:
        """Describe the weather and its newest events as JSON."""
        forecast = self.forecast
        return {
            "seed": forecast.seed if forecast else None,
            "kinds": list(forecast.kinds) if forecast else [],
            "speed": self.speed,
            "events": list(self.events),
        }
