"""Reads files of a job's directory without trusting them: every job can write there, and disks fail.

Nothing here waits for the other end of a FIFO, follows a link, or reads without limit.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid, parse

if TYPE_CHECKING:
    from typing import Any

# A command may have 2 MiB (Linux's ARG_MAX), and JSON may need six characters for each byte; a job's description
# contains its packages' lock file, too.
MOST_BYTES = 16 << 20


def open_to_read(path: str) -> int:
    """Open the regular file of this name. Raises FileNotFoundError, NotADirectoryError, Invalid."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise Invalid(f"{os.path.basename(path)} can't be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Invalid(f"{os.path.basename(path)} is not a file")
    return fd


def read_text(path: str) -> str:
    """Return the text of this file. Raises FileNotFoundError, NotADirectoryError, Invalid."""
    with os.fdopen(open_to_read(path), "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Invalid(f"{os.path.basename(path)} is larger than {MOST_BYTES >> 20} MiB")
    return data.decode(errors="replace")


def read_json(path: str) -> Any:
    """Return the JSON value in this file. Raises FileNotFoundError, NotADirectoryError, Invalid."""
    text = read_text(path)
    try:
        return parse(text)
    except Invalid as error:
        why = f": {error}" if text else " is empty"
        raise Invalid(os.path.basename(path) + why) from error


def open_to_append(path: str) -> int:
    """Open this file, creating it if necessary. Raises OSError, at once for a FIFO."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o600)


def open_log(directory: str) -> int:
    """Open the log for failures of the runner and of the process that settles the job; /dev/null where that fails."""
    try:
        return open_to_append(os.path.join(directory, "runner.log"))
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
