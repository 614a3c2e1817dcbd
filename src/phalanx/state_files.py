"""Where this machine keeps what it knows of clusters, and how it writes files that only its user may read."""

from __future__ import annotations

import os
import re
from pathlib import Path

from phalanx.errors import ClusterError
from phalanx.node import files

_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9-]{0,127}$")


def state_directory() -> Path:
    """Return where clusters and the local cloud are stored: $PHALANX_STATE_DIR, or below $XDG_STATE_HOME."""
    chosen = os.environ.get("PHALANX_STATE_DIR")
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "phalanx"


def cluster_directory(name: str) -> Path:
    """Return the directory of a cluster. Raises ClusterError for a name that could lead out of it."""
    if not _NAME.match(name):
        raise ClusterError(
            f"'{name}' can't be the name of a cluster",
            "Use letters, digits and dashes; begin with a letter.",
            code="bad-name",
        )
    return state_directory() / "clusters" / name


def known() -> list[str]:
    """Return the names of the clusters that this machine has a record of."""
    return sorted(path.parent.name for path in (state_directory() / "clusters").glob("*/cluster.json"))


def write_private(path: Path, text: str, lasts: bool = True) -> None:
    """Write a file atomically that only this user can read; what `lasts` is there after a power failure."""
    make_directory(path.parent)
    if not files.write(str(path), text, 0o600, is_synced=lasts):
        path.chmod(0o600)
    elif lasts:
        files.sync(str(path.parent))


def make_directory(path: Path) -> None:
    """Make a directory that only this user can read, and those above it; each is there after a power failure."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        files.sync(str(path.parent))
