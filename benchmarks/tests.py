"""The unit tests (target 10 s), and `make test` with the tests on real clusters (once; target 8 min)."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.measure import ROOT, Figure, repeat, seconds, show

UNIT = [sys.executable, "-m", "pytest", "-q", "tests/unit"]


def figures() -> Iterator[Figure]:
    yield Figure("unit tests", repeat(lambda: seconds(UNIT, cwd=ROOT)), target=10)
    yield Figure("every test", repeat(lambda: seconds(["make", "test"], cwd=ROOT, timeout_s=1200), times=1), target=480)


if __name__ == "__main__":
    show(list(figures()))
