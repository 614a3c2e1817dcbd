"""How far a rank is: its step, and what its script says of itself. Starters count it, and others show it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Mapping, NamedTuple, Optional, Sequence

from phalanx.node.validate import Invalid

if TYPE_CHECKING:
    from typing import Any, Dict

NAME = "[A-Za-z_][A-Za-z0-9_.]{0,31}"
MOST_VALUES = 8
LARGEST_STEP = 1 << 53
_NAME = re.compile(NAME)
_LARGEST = 1e18
# A rank that is slower than this part of the median is a straggler; one without a step for so long has no rate.
_SLOW, _OLD_S = 0.7, 10.0


class Progress(NamedTuple):
    """The last step of a rank (None: unknown), its steps per second in the last minute, and its last values by name.

    A job can forge them, as all that it writes.
    """

    step: Optional[int] = None
    rate: float = 0.0
    values: Mapping[str, float] = {}


class RankProgress(NamedTuple):
    """A rank's progress; its step is `age_s` old."""

    rank: str
    node: str
    age_s: float
    progress: Progress

    @property
    def rate(self) -> float:
        """The steps per second; 0 if the last one is older than three steps take."""
        rate = self.progress.rate
        return rate if rate and self.age_s <= max(_OLD_S, 3 / rate) else 0.0


def checked(value: Any) -> Progress:
    """Return the progress of [step, rate, {name: value}]. Raises Invalid."""
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        raise Invalid(f"{value!r:.60} is no progress")
    step, rate, values = value
    if step is not None and (type(step) is not int or not 0 <= step <= LARGEST_STEP):
        raise Invalid(f"{step!r:.60} is no step")
    if not isinstance(values, dict) or len(values) > MOST_VALUES:
        raise Invalid(f"{values!r:.60} are no values")
    if not all(_NAME.fullmatch(name) for name in values):
        raise Invalid(f"{values!r:.60} have no names")
    if not all(map(_is_amount, values.values())) or not _is_amount(rate) or rate < 0:
        raise Invalid(f"{value!r:.60} is no progress")
    return Progress(step, rate, values)


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) <= _LARGEST


def median_rate(ranks: Sequence[RankProgress]) -> float:
    """Return the median of the ranks' rates; 0 if none has one."""
    rates = sorted(one.rate for one in ranks if one.progress.rate)
    return rates[len(rates) // 2] if rates else 0.0


def straggler(ranks: Sequence[RankProgress]) -> Optional[RankProgress]:
    """Return the slowest rank, if it is much slower than the median."""
    slowest = min((one for one in ranks if one.progress.rate), key=lambda one: one.rate, default=None)
    return slowest if slowest and slowest.rate < _SLOW * median_rate(ranks) else None


def values_in_words(ranks: Sequence[RankProgress]) -> str:
    """Return the values that a job's script shows, each by the first rank that shows it; "" if there are none."""
    found: Dict[str, float] = {}
    for one in ranks:
        found = {**one.progress.values, **found}
    return ", ".join(f"{name} {value:.6g}" for name, value in list(found.items())[:MOST_VALUES])


def in_words(ranks: Sequence[RankProgress]) -> str:
    """Return how far a job is, and its straggler; "" if no step is known."""
    steps = [one.progress.step for one in ranks if one.progress.step is not None]
    if not steps:
        return ""
    at = f"step {max(steps)}" if min(steps) == max(steps) else f"step {min(steps)} to {max(steps)}"
    rate = median_rate(ranks)
    slow = straggler(ranks)
    named = f"; straggler: {slow.rank} on {slow.node}, {slow.rate:.3g} a second" if slow else ""
    return at + (f", {rate:.3g} a second" if rate else "") + named
