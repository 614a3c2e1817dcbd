"""Compares two recordings of an API's answers (`phalanx.aws.transcript` writes them): codes, members, kinds and orders.

`make smoke-aws` makes one of AWS, and the same steps on the local cloud another. Where they differ, the stand-in is
wrong, or the two runs met other circumstances, which a person must decide.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

Entry = Mapping[str, Any]


def read(path: Path) -> list[Entry]:
    """Return the calls of a recording. Raises ValueError for a file that is none."""
    try:
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        return [one for one in entries if one["call"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no recording: {error!r}") from None


def members(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the paths to the members of an answer that have a value, each with that value."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from members(one, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for one in value:
            yield from members(one, f"{path}[]")
    elif value not in (None, ""):
        yield path, value


def differences(theirs: Iterable[Entry], ours: Iterable[Entry]) -> list[str]:
    """Return what the other one answers and ours does not, call by call: a list of ours's faults."""
    those, these = _by_call(theirs), _by_call(ours)
    found = [f"{call}: was only called there" for call in those if call not in these]
    for call in (call for call in those if call in these):
        found += [f"{call}: {one}" for one in _of_call(those[call], these[call])]
    return found


def _by_call(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for one in entries:
        found.setdefault(one["call"], []).append(one)
    return found


def _of_call(theirs: list[Entry], ours: list[Entry]) -> Iterator[str]:
    own = set(map(said, ours))
    yield from (f"answers {one} there only" for one in dict.fromkeys(map(said, theirs)) if one not in own)
    those, these = _kinds(theirs), _kinds(ours)
    # Without an accepted answer, nothing is known of its members.
    if these or "accepted" in own:
        yield from (f"{path} is there only" for path in those if path not in these)
    for path in those.keys() & these.keys():
        if not those[path] <= these[path]:
            yield f"{path} is {_words(those[path])} there, and {_words(these[path])} here"
    for path, states in _states(theirs).items():
        yield from _turned(path, states, _states(ours).get(path, []))


def said(entry: Entry) -> str:
    """Return the error's code, or "accepted"."""
    return entry["error"].partition(":")[0] if entry.get("error") else "accepted"


def _kinds(entries: list[Entry]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path, value in (pair for one in entries for pair in members(one.get("answer"))):
        found.setdefault(path, set()).add("a number" if type(value) in (int, float) else type(value).__name__)
    return found


def _words(kinds: set[str]) -> str:
    return " or ".join(sorted({"str": "a text", "bool": "true or false"}.get(one, one) for one in kinds))


def _states(entries: list[Entry]) -> dict[str, list[str]]:
    """Return the states of each member in the order in which they came first."""
    found: dict[str, dict[str, None]] = {}
    for path, value in (pair for one in entries for pair in members(one.get("answer"))):
        if isinstance(value, str) and not value.startswith("<"):
            found.setdefault(path, {})[value] = None
    return {path: list(states) for path, states in found.items()}


def _turned(path: str, theirs: list[str], ours: list[str]) -> Iterator[str]:
    """Yield the pairs of states that came in another order. A state that only one has seen may be chance."""
    both = [one for one in theirs if one in ours]
    for first, then in pairwise(both):
        if ours.index(first) > ours.index(then):
            yield f"{path} is {first} there before {then}, and here after it"
