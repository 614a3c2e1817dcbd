"""Debian's packages on a node, from the tree that they were unpacked into: laid over /usr's directories."""

from __future__ import annotations

import subprocess
from pathlib import Path


def lay(packages: str) -> None:
    """Once; file systems can be laid over each other twice only.

    Directory by directory: the image's own programs are a mount below /usr that root on a node can't move, and the
    kernel lays nothing over a directory with such a mount in it.
    """
    if not Path("/usr/bin/sbatch").exists():
        for directory in Path(packages, "usr").iterdir():
            place = Path("/usr", directory.name)
            mount("-t", "overlay", "overlay", "-o", f"lowerdir={directory}:{place},userxattr", str(place))


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)
