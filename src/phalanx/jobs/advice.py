"""What to do about failures whose own messages don't say it, from the last lines of the process that failed first.

A job can write any line, so nothing of it becomes part of the advice but words that a pattern lists.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.runner.files.job_status import JobStatus

# Of torchrun, which scripts for PyTorch's DDP read. `exec` sets them, too, LOCAL_RANK with -n or -N.
_VARIABLES = "LOCAL_WORLD_SIZE|LOCAL_RANK|WORLD_SIZE|RANK|MASTER_ADDR|MASTER_PORT"
_NO_RANK = re.compile(rf"KeyError: '({_VARIABLES})'|environment variable ({_VARIABLES}) expected")
# PyTorch's loaders, its strategy `file_system`, NCCL and Open MPI write into /dev/shm through memory: when it is full,
# a process gets SIGBUS, or the file can't be made.
_NO_SHARED_MEMORY = re.compile(
    r"[Bb]us error|SIGBUS|insufficient shared memory|allocate shared memory|shared memory segment"
    r"|/dev/shm/.*No space left|No space left on device.*(?:/dev/shm|/psm_|/torch_)|</torch_[^>]*>.*No space left"
    r"|SemLock\([\s\S]{0,400}No space left"
)
# A job's lines have any length, and a pattern may take the square of it.
_LONGEST_LINE = 1000
_NO_FILES = re.compile(r"Too many open files|received 0 items of ancdata")


def advice(status: JobStatus) -> str:
    """Return what helps after a job's failure; "" if nothing is known."""
    if status.exit_code in (None, 0):
        return ""
    text = "\n".join(line[:_LONGEST_LINE] for line in (status.message, *status.tail))
    found = _NO_RANK.search(text)
    name = found[1] or found[2] if found else ""
    if name and status.launcher != "torchrun" and (status.launcher != "exec" or name == "LOCAL_RANK"):
        return f"{status.launcher} sets no {name} here: `{_with_torchrun(status)}` does"
    if _NO_SHARED_MEMORY.search(text):
        return (
            "its node's /dev/shm may be full: `phalanx exec -- df -h /dev/shm` shows that. Fewer or smaller batches "
            "in a DataLoader's workers (num_workers, prefetch_factor) need less, and a larger type of machine has more"
        )
    if _NO_FILES.search(text):
        return (
            "its processes had too many files open: torch.multiprocessing.set_sharing_strategy('file_system') keeps "
            "tensors of a DataLoader's workers without open files, and `ulimit -n` shows the limit"
        )
    return ""


def _with_torchrun(status: JobStatus) -> str:
    words = status.command
    if len(words) > 1 and re.fullmatch(r"python[\d.]*", words[0]) and not words[1].startswith("-"):
        words = words[1:]
    return f"phalanx run --launcher torchrun -- {shlex.join(words)}"
