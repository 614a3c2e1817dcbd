"""Read the text of phalanx.yaml, of limited size."""

from __future__ import annotations

import stat
from pathlib import Path

from phalanx.errors import SpecError

LARGEST_FILE_BYTES = 256 * 1024
_WRITE = "`phalanx init` writes one; `-f FILE` names another."


def text(path: Path) -> str:
    """Return the text of the file. Raises SpecError if it can't be read or can't be a phalanx.yaml."""
    data = _bytes(path)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise SpecError(f"{path}: is UTF-16 text", "Save it as UTF-8.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"{path}:{line}: is not UTF-8 text (byte 0x{data[error.start]:02x})"
        raise SpecError(what, "Save it as UTF-8.") from None


def _bytes(path: Path) -> bytes:
    try:
        _require_file(path)
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        other = path.with_suffix(".yml")
        hint = f"There is {other}: rename it, or name it with `-f`." if other.exists() else _WRITE
        raise SpecError(f"{path}: there is no such file", hint) from None
    except IsADirectoryError:
        raise SpecError(f"{path}: is a directory", f"Name the file in it, such as {path / 'phalanx.yaml'}.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError(f"{path}: can't be read: {reason}") from None
    if len(data) > LARGEST_FILE_BYTES:
        raise SpecError(f"{path}: is larger than {LARGEST_FILE_BYTES // 1024} KiB, so it is not a phalanx.yaml")
    return data


def _require_file(path: Path) -> None:
    """Refuse a FIFO or a terminal, whose reading might never end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise SpecError(f"{path}: is not a regular file", "Write its content into a file and name that file.")
