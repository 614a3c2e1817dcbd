"""Sets each target's time and seed, and prints a line for each target at the end.

PHALANX_FUZZ_S is the time for each of them (default: 0.5 s), PHALANX_FUZZ_SEED determines the examples.
"""

from __future__ import annotations

import os
import random
from collections.abc import Generator

import pytest

from fuzz import fuzzing

_EACH_S = 0.5
_SEED = os.environ.get("PHALANX_FUZZ_SEED") or str(random.SystemRandom().getrandbits(32))
_RAN: dict[str, fuzzing.Target] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    total_s = os.environ.get("PHALANX_FUZZ_S")
    each_s = float(total_s) / item.session.testscollected if total_s else _EACH_S
    fuzzing.target = _RAN[item.name] = fuzzing.Target(each_s, f"{_SEED} {item.name}")
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _RAN:
        terminalreporter.section(f"fuzzed with seed {_SEED}")
    for name, ran in _RAN.items():
        terminalreporter.write_line(f"{name:<80}{ran.examples:>9,} examples in {ran.took_s:.0f} s")
