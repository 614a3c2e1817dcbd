"""Mounts the unpacked tree of Debian's packages over the directories of a node's /usr."""

from __future__ import annotations

import subprocess
from pathlib import Path


def lay(packages: str) -> None:
    """Mount the packages once: overlay file systems can be stacked only twice.

    Each directory is mounted separately: the image's own programs are a mount below /usr that root on a node can't
    move, and the kernel puts no overlay on a directory with such a mount inside.
    """
    if not Path("/usr/bin/sbatch").exists():
        for directory in Path(packages, "usr").iterdir():
            place = Path("/usr", directory.name)
            mount("-t", "overlay", "overlay", "-o", f"lowerdir={directory}:{place},userxattr", str(place))


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)
