"""Which code a local cloud runs: after an update of phalanx, it may be another than this."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path


def identity() -> str:
    """Identify the local cloud's code by its files and their sizes. It is on the command line of those started here."""
    found = find_spec("localcloud")
    if found is None or found.origin is None:
        return ""
    package = Path(found.origin).parent
    files = sorted((str(path.relative_to(package)), path.stat().st_size) for path in package.rglob("*.py"))
    return hashlib.sha256(repr(files).encode()).hexdigest()[:16]


def remedy(pid: int) -> str:
    """Return what to do where a local cloud lacks what this version asks of it; "" if it runs this code."""
    if identity().encode() in command_line(pid):
        return ""
    return (
        f"The local cloud (process {pid}) was started by another version of phalanx. Fetch what you need with "
        "`phalanx get`; `phalanx local stop --force` then ends it, and its clusters with it."
    )


def command_line(pid: int) -> list[bytes]:
    """Return the arguments of a process; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
