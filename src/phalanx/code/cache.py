"""The cache directory: files that can be built again, and only the newest few of each kind."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """Return the directory, which need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phalanx"


def keep(path: Path, content: bytes, most: int) -> None:
    """Write a file atomically and delete the oldest of its kind (`kind-*.suffix`) beyond `most`; ignore failures."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
        kind = path.name.partition("-")[0]
        for old in sorted(path.parent.glob(f"{kind}-*{path.suffix}"), key=_written_at, reverse=True)[most:]:
            old.unlink(missing_ok=True)
    except OSError:
        return


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # another process deleted it
