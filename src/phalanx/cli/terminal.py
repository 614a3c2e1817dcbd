"""What others wrote, as a terminal may get it: its text and its colours; whatever else would act there is shown."""

from __future__ import annotations

import re
from typing import TextIO

_COLOR = r"\x1b\[[0-9;]{0,60}m"
_RESET = "\x1b[0m"
_RESETS = (_RESET, "\x1b[m")
# C0 and C1 but for tab and newline, DEL; halves of surrogate pairs stand for bytes that are no UTF-8.
_ACTS = re.compile(f"({_COLOR})|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def visible(text: str) -> str:
    """Each control character as `\\x1b`, so that it does nothing; colours stay, and end with their line."""
    shown = _ACTS.sub(lambda found: found[1] or _escape(found[0]), text)
    return "\n".join(map(_ended, shown.split("\n")))


def plain(text: str) -> str:
    """The same without colours: a table must know how wide its cells are."""
    return _ACTS.sub(lambda found: "" if found[1] else _escape(found[0]), text)


def for_stream(text: str, stream: TextIO) -> str:
    """As `visible` on a terminal; a file or a pipe gets what was written."""
    return visible(text) if stream.isatty() else text


def write(stream: TextIO, data: bytes) -> None:
    """Write what a program wrote: to a terminal as `visible`, elsewhere byte for byte."""
    if stream.isatty():
        text = visible(data.decode("utf-8", "surrogateescape"))
        data = text.encode(stream.encoding, "backslashreplace")
    stream.buffer.write(data)
    stream.flush()


def _escape(character: str) -> str:
    code = ord(character)
    # What is no UTF-8 was decoded to U+DC80 and on.
    return f"\\x{code - 0xDC00 if code >= 0xDC80 else code:02x}"


def _ended(line: str) -> str:
    """With the reset that a line lacks whose last colour is none."""
    last = line.rfind("\x1b")
    return line if last < 0 or line.startswith(_RESETS, last) else line + _RESET
