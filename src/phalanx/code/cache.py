"""What this machine can make again, kept beside each other in one directory: the newest few of each kind."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """Where it lies."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phalanx"


def keep(path: Path, content: bytes, most: int) -> None:
    """Write it whole, and forget the oldest of its kind (`kind-*.suffix`) beyond `most`; no error where that fails."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
        beside.replace(path)
        kind = path.name.partition("-")[0]
        for old in sorted(path.parent.glob(f"{kind}-*{path.suffix}"), key=_written_at, reverse=True)[most:]:
            old.unlink(missing_ok=True)
    except OSError:
        return


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # another process forgot it
