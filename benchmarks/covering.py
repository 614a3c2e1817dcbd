"""Few choices of options that together contain every pair of options which `plan` accepts: a covering array. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from benchmarks.options import FAST, OPTIONS, Choice

Option = tuple[str, str]
"""A field, and its value as JSON."""
Pair = frozenset[Option]
Accepts = Callable[[Mapping[str, Any]], object]
# What an option may need of others to be accepted.
_HELP: tuple[Choice, ...] = (
    {},
    {"type": FAST},
    {"type": FAST, "head": {"type": "m5.large"}},
    {"type": FAST, "storage": "lustre"},
    *({field: value} for field, values in OPTIONS.items() for value in values),
)


@dataclass(frozen=True)
class Array:
    """The choices, the pairs that are in one of them, and those that no plan accepts."""

    choices: tuple[Choice, ...]
    covered: frozenset[Pair]
    refused: frozenset[Pair]


def pairs() -> Iterator[Choice]:
    """Yield all pairs of options of different fields."""
    for one, other in combinations(sorted(OPTIONS), 2):
        for first in OPTIONS[one]:
            for second in OPTIONS[other]:
                yield {one: first, other: second}


def contained(choice: Mapping[str, Any]) -> set[Pair]:
    """Return the pairs of options in a choice."""
    options = ((field, json.dumps(value, sort_keys=True)) for field, value in choice.items())
    return {frozenset(two) for two in combinations(options, 2)}


def cover(accepts: Accepts, seed: int) -> Array:
    """Choose greedily, from a pair that is in no choice yet on, the options that add most new pairs."""
    chance, choices, covered = random.Random(seed), [], set[Pair]()
    starts = {pair: start for pair, start in _starts(accepts) if start}
    refused = {pair for pair, _ in _starts(lambda _choice: True)} - set(starts)
    while left := sorted(starts.keys() - covered, key=sorted):
        choice = dict(starts[chance.choice(left)])
        _grow(choice, accepts, set(left), chance)
        covered |= contained(choice)
        choices.append(choice)
    return Array(tuple(choices), frozenset(covered), frozenset(refused - covered))


def _starts(accepts: Accepts) -> Iterator[tuple[Pair, Choice | None]]:
    """Yield each pair with the smallest choice around it that is accepted; None if there is none."""
    for pair in pairs():
        tries = ({**helped, **pair} for helped in _HELP)
        (key,) = contained(pair)
        yield key, next((one for one in tries if accepts(one)), None)


def _grow(choice: Choice, accepts: Accepts, left: set[Pair], chance: random.Random) -> None:
    """Add an option of each other field, if one is accepted: that which brings most pairs that are left."""
    fields = [field for field in OPTIONS if field not in choice]
    chance.shuffle(fields)
    for field in fields:
        values = list(OPTIONS[field])
        chance.shuffle(values)
        values.sort(key=lambda value: -len(contained({**choice, field: value}) & left))
        for value in values:
            if accepts({**choice, field: value}):
                choice[field] = value
                break
