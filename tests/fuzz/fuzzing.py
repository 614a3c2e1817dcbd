"""Runs a check on random bytes and values, and on valid ones with changes, for a limited time.

Each example has a deadline and a limit on its memory. conftest.py sets the time and the seed, and prints what ran.
"""

from __future__ import annotations

import json
import random
import signal
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

# Generous, because the machine may be busy: this detects hangs, not slowness.
_EXAMPLE_S = 10
_MOST_BYTES = 64 << 20
_ROUND = settings(
    max_examples=100,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)

numbers = st.integers() | st.floats() | st.sampled_from([0, -1, 1 << 31, 1 << 63, 1 << 200, 1e308, float("nan")])
texts = st.text("aZ09 -_./\\\"'{}[]:,\0\n\r\x1b\x7fé€\U0001f600", max_size=40) | st.sampled_from(
    ["", "\0", "\n", "\x1b]0;x\x07", "../../x", "-oProxyCommand=x", "x" * 5000]
)
leaves = st.none() | st.booleans() | numbers | texts
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))


@dataclass
class Target:
    """The current test: its time, the seed of its examples, and their number."""

    timeout_s: float = 4.0
    seed: str = "1"
    examples: int = 0
    took_s: float = 0.0


target = Target()


def fuzz(examples: st.SearchStrategy[Any], check: Callable[[Any], None], corpus: list[Any] = []) -> None:  # noqa: B006
    """Check the corpus, then new examples until the time is over."""
    begun, chance = time.monotonic(), random.Random(target.seed)
    for example in corpus:
        with _bounds():
            check(example)
    while target.took_s < target.timeout_s:
        _round(examples, check, chance.getrandbits(64))
        target.took_s = time.monotonic() - begun


def changed_bytes(*valid: bytes) -> st.SearchStrategy[bytes]:
    """Generate one of these with bytes replaced, removed, inserted or cut off; or any bytes."""
    edit = st.tuples(st.integers(0, max(map(len, valid))), st.integers(0, 8), st.binary(max_size=8))
    return st.binary(max_size=200) | st.builds(
        lambda which, edits: _edited(valid[which], edits), st.integers(0, len(valid) - 1), st.lists(edit, max_size=6)
    )


def changed_text(*valid: str) -> st.SearchStrategy[str]:
    """Generate changed text, or any text."""
    return changed_bytes(*(text.encode() for text in valid)).map(lambda data: data.decode(errors="replace"))


def changed_value(valid: Any) -> st.SearchStrategy[Any]:
    """Generate the value with one part replaced or removed; or any value."""
    places = list(_places(valid))
    missing = st.just(_MISSING)
    return values | st.builds(
        lambda place, new: _replaced(valid, place, new), st.sampled_from(places), values | missing
    )


_MISSING = object()


def _round(examples: st.SearchStrategy[Any], check: Callable[[Any], None], number: int) -> None:
    @seed(number)
    @_ROUND
    @given(examples)
    def one(example: Any) -> None:
        target.examples += 1
        with _bounds():
            check(example)

    with warnings.catch_warnings():
        # Of a failure's example, which may be long.
        warnings.simplefilter("ignore", HypothesisWarning)
        one()


@contextmanager
def _bounds() -> Iterator[None]:
    tracemalloc.start()
    old = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_EXAMPLE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
        grown = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert grown < _MOST_BYTES, f"it took {grown} bytes"


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"no end within {_EXAMPLE_S} s")


def _edited(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for at, left_out, put_in in edits:
        data = data[:at] + put_in + data[at + left_out :]
    return data


def _places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield above
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from _places(part, (*above, key))


def _replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return None if new is _MISSING else new
    copy = json.loads(json.dumps(value))
    *way, last = place
    part = copy
    for key in way:
        part = part[key]
    if new is _MISSING:
        del part[last]
    else:
        part[last] = new
    return copy
