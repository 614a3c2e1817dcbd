"""Read the text of phalanx.yaml, of limited size."""

from __future__ import annotations

from pathlib import Path

from phalanx import guest_file
from phalanx.errors import SpecError

LARGEST_FILE_BYTES = 256 * 1024
_WRITE = "`phalanx init` writes one; `--file FILE` names another."


def text(path: Path) -> str:
    """Return the text of the file. Raises SpecError if it can't be read or can't be a phalanx.yaml."""
    data = _bytes(path)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise SpecError(f"{path}: is UTF-16 text", "Save it as UTF-8.", code="not-utf8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"{path}:{line}: is not UTF-8 text (byte 0x{data[error.start]:02x})"
        raise SpecError(what, "Save it as UTF-8.", code="not-utf8") from None


def _bytes(path: Path) -> bytes:
    try:
        return guest_file.read(path, LARGEST_FILE_BYTES)
    except FileNotFoundError:
        other = path.with_suffix(".yml")
        hint = f"There is {other}: rename it, or name it with `-f`." if other.exists() else _WRITE
        raise SpecError(f"{path}: there is no such file", hint, code="no-file") from None
    except IsADirectoryError:
        raise SpecError(
            f"{path}: is a directory", f"Name the file in it, such as {path / 'phalanx.yaml'}.", code="cannot-read"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError(f"{path}: can't be read: {reason}", code="cannot-read") from None
