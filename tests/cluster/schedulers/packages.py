"""Debian's packages on a node, from the tree that they were unpacked into: laid over /usr, where they belong."""

from __future__ import annotations

import subprocess
from pathlib import Path


def lay(packages: str) -> None:
    """Once; file systems can be laid over each other twice only."""
    if not Path("/usr/bin/sbatch").exists():
        layers = f"lowerdir={packages}/usr:/usr,userxattr"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, "/usr"], check=True)
