"""The unit tests (reach 10 s) and every test, the ones on real clusters included (once; reach 8 min)."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.measure import ROOT, Figure, repeat, seconds, show

PYTEST = [sys.executable, "-m", "pytest", "-q"]


def figures() -> Iterator[Figure]:
    yield Figure("unit tests", repeat(lambda: seconds([*PYTEST, "tests/unit"], cwd=ROOT)), reach=10)
    yield Figure("every test", repeat(lambda: seconds(PYTEST, cwd=ROOT, timeout_s=1200), times=1), reach=480)


if __name__ == "__main__":
    show(list(figures()))
