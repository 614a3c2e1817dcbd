"""`phalanx --help`, beside an empty Python and the neighbours that are installed: reach 0.12 s."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

from benchmarks.measure import PHALANX, Figure, repeat, seconds, show

NEIGHBOURS = ("torchx", "sky", "pcluster")


def figures() -> Iterator[Figure]:
    yield Figure("phalanx --help", repeat(lambda: seconds([PHALANX, "--help"])), reach=0.12)
    yield Figure("  beside: python -c pass", repeat(lambda: seconds([sys.executable, "-c", "pass"])))
    for path in filter(None, map(shutil.which, NEIGHBOURS)):
        yield Figure(f"  beside: {path.rpartition('/')[2]} --help", repeat(lambda path=path: seconds([path, "--help"])))


if __name__ == "__main__":
    show(list(figures()))
