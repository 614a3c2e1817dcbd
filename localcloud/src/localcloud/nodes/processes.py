"""The processes of a node, as the supervisor sees them."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

# A process that forks while it is looked for leaves a child that the next round finds.
_ROUNDS_MOST = 20


def signal_all(process_one: int, number: int, pattern: str = "") -> None:
    """Send a signal to all processes in the namespace of this node's process 1, that one included.

    `pattern`: only to those whose command line matches this regular expression somewhere.
    """
    signalled: set[int] = set()
    for _ in range(_ROUNDS_MOST):
        # The kernel may keep a reader of a command line waiting.
        new = {pid for pid in _inside(process_one) if not pattern or re.search(pattern, _command_line(pid))} - signalled
        if not new:
            return
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        signalled |= new


def _inside(process_one: int) -> set[int]:
    own = _namespace(process_one)
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return {pid for pid in pids if own and _namespace(pid) == own}


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:  # it ended meanwhile
        return ""


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:  # it ended meanwhile
        return ""
