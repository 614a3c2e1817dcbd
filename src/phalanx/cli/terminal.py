"""Make untrusted output safe for a terminal: text and colours stay; other control characters are escaped."""

from __future__ import annotations

import os
import re
from typing import TextIO

_COLOR = r"\x1b\[[0-9;]{0,60}m"
_RESET = "\x1b[0m"
CLEAR_LINE = "\r\x1b[K"
"""Clears the line that the cursor is on."""
_RESETS = (_RESET, "\x1b[m")
# C0 and C1 except tab and newline, and DEL. Lone surrogates stand for bytes that are not UTF-8.
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff"
# What makes text look like other text: marks that reorder it (Unicode's Bidi_Control: a file `x\u202egpj.exe` reads
# `xexe.jpg`), other line breaks, and characters without width, tags among them, in which text hides. Not U+200C and
# U+200D: Persian, the scripts of India and emoji are written with them, and they only join or part their neighbours.
_DECEIVES = (
    "\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\U000e0000-\U000e007f"
)
_ACTS = re.compile(f"({_COLOR})|[{_CONTROLS}{_DECEIVES}]")
_BREAKS = re.compile("[\t\n]")


def visible(text: str) -> str:
    """Escape control and deceptive characters, as `\\x1b` or `\\u202e`; keep colours, and end them with the line."""
    shown = _ACTS.sub(lambda found: found[1] or _escape(found[0]), text)
    return "\n".join(map(_ended, shown.split("\n")))


def plain(text: str) -> str:
    """Escape as `visible` does and remove colours, so that a table knows the width of its cells."""
    return _ACTS.sub(lambda found: "" if found[1] else _escape(found[0]), text)


def one_line(text: str) -> str:
    """Escape as `plain` does, and tabs and line breaks too, so that a table's row stays on its line."""
    return _BREAKS.sub(lambda found: _escape(found[0]), plain(text))


def beneath(text: str) -> str:
    """Indent all lines but the first, so that no text of somebody else's begins a line as phalanx's own do."""
    return text.replace("\n", "\n  ")


def obeys(stream: TextIO) -> bool:
    """Whether the stream is a terminal with colours and a cursor that can be moved; one with TERM=dumb has neither."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colors(stream: TextIO) -> bool:
    """Whether to use colours: not on a dumb terminal, and not if NO_COLOR is set (https://no-color.org)."""
    return obeys(stream) and not os.environ.get("NO_COLOR")


def for_stream(text: str, stream: TextIO) -> str:
    """Return the text as `visible` for a terminal, and unchanged for a file or a pipe."""
    return visible(text) if stream.isatty() else text


def write(stream: TextIO, data: bytes) -> None:
    """Write a program's output: to a terminal as `visible`, elsewhere byte for byte."""
    if stream.isatty():
        text = visible(data.decode("utf-8", "surrogateescape"))
        data = text.encode(stream.encoding, "backslashreplace")
    stream.buffer.write(data)
    stream.flush()


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # bytes that are not UTF-8 were decoded to these
        code -= 0xDC00
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _ended(line: str) -> str:
    """Add a reset to a line that ends in a colour."""
    last = line.rfind("\x1b")
    return line if last < 0 or line.startswith(_RESETS, last) else line + _RESET
