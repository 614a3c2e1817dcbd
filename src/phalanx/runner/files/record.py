"""What lies in a job's directory, read with suspicion: every job can write there, and disks break.

Nothing here waits (for the other end of a FIFO), follows a link, or reads without end.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid

if TYPE_CHECKING:
    from typing import Any, NoReturn, Union

# A command may have 2 MiB (Linux's ARG_MAX), of which JSON may need six characters for one; a job's description holds
# its packages' lock file, too.
MOST_BYTES = 16 << 20
# Of 2^64. Python before 3.11 takes minutes for a number of a million.
_MOST_DIGITS = 20


def open_to_read(path: str) -> int:
    """A descriptor of the regular file of this name. Raises FileNotFoundError, NotADirectoryError, Invalid."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise Invalid(f"{os.path.basename(path)} can't be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Invalid(f"{os.path.basename(path)} is no file")
    return fd


def read_text(path: str) -> str:
    """What this file holds. Raises FileNotFoundError, NotADirectoryError, Invalid."""
    with os.fdopen(open_to_read(path), "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Invalid(f"{os.path.basename(path)} is larger than {MOST_BYTES >> 20} MiB")
    return data.decode(errors="replace")


def read_json(path: str) -> Any:
    """The value in this file. Raises FileNotFoundError, NotADirectoryError, Invalid."""
    text = read_text(path)
    try:
        return parse(text)
    except Invalid as error:
        raise Invalid(f"{os.path.basename(path)} {error if text else 'is empty'}") from error


def parse(text: Union[str, bytes]) -> Any:
    """The value of this JSON, whose numbers are finite and fit into 64 bits. Raises Invalid."""
    try:
        return json.loads(text, parse_int=_whole, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Invalid("is no JSON, or not all of it") from error


def _whole(digits: str) -> int:
    return int(digits) if len(digits) <= _MOST_DIGITS else _no_number(digits)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text:.20} is no number")


def open_to_append(path: str) -> int:
    """A descriptor of this file, which is made where there is none. Raises OSError, at once for a FIFO."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o600)


def open_log(directory: str) -> int:
    """Where a job's runner, and who settles the job, write what went wrong with themselves; nowhere if that is gone."""
    try:
        return open_to_append(os.path.join(directory, "runner.log"))
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
