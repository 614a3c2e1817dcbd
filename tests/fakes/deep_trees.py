"""Directories that are nested deeper than Python's calls, and than a path may be long: `shutil.rmtree` fails there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LEVELS = 1_200
# A path has at most 4,096 bytes.
LEVELS_BEYOND_PATHS = 2_100


@contextmanager
def deep_tree(top: Path, levels: int = LEVELS) -> Iterator[Path]:
    """Make `top` with directories that are nested so deep, a file in the last; remove what is left of it."""
    top.mkdir(parents=True)
    try:
        here = os.open(top, os.O_DIRECTORY)
        for _ in range(levels):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.close(here)
        yield top
    finally:
        subprocess.run(["rm", "-rf", str(top)], check=True)
