"""Debian's packages on a node, from the tree that they were unpacked into: laid over /usr, where they belong."""

from __future__ import annotations

import subprocess
from pathlib import Path


def lay(packages: str) -> None:
    """Once; file systems can be laid over each other twice only."""
    if not Path("/usr/bin/sbatch").exists():
        layers = f"lowerdir={packages}/usr:/usr,userxattr"
        # The image's own programs are a mount within /usr, which the new one would hide.
        mount("--bind", "/usr/local/sbin", "/mnt")
        mount("-t", "overlay", "overlay", "-o", layers, "/usr")
        mount("--move", "/mnt", "/usr/local/sbin")


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)
