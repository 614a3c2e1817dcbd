"""`phalanx --help`, compared with an empty Python and with installed alternatives: target 0.12 s."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

from benchmarks.measure import PHALANX, Figure, repeat, seconds, show

ALTERNATIVES = ("torchx", "sky", "pcluster")


def figures() -> Iterator[Figure]:
    yield Figure("phalanx --help", repeat(lambda: seconds([PHALANX, "--help"])), target=0.12)
    yield Figure("  for comparison: python -c pass", repeat(lambda: seconds([sys.executable, "-c", "pass"])))
    for path in filter(None, map(shutil.which, ALTERNATIVES)):
        yield Figure(
            f"  for comparison: {path.rpartition('/')[2]} --help", repeat(lambda path=path: seconds([path, "--help"]))
        )


if __name__ == "__main__":
    show(list(figures()))
