"""A line of .gitignore as a regular expression, as git's wildmatch reads it (gitignore(5), git's wildmatch.c)."""

from __future__ import annotations

import re
from typing import NamedTuple

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": " \\t-\\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
_NEVER = "(?!)"
_ANY = "[^/]"


class Pattern(NamedTuple):
    """`expression` is for the whole path below the rules' directory, or (`by_name`) for its last part alone.

    A directory's path ends with a slash. `negated`: what matches is sent after all.
    """

    expression: str
    by_name: bool
    negated: bool


def parse(line: str) -> Pattern | None:
    """The pattern of this line (a character per byte); None for a comment or an empty line."""
    text = _without_blank_end(line)
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text[negated:]
    directory_alone = text.endswith("/")
    text = text.removesuffix("/")
    if not text:
        return None
    by_name = "/" not in text
    return Pattern(_expression(text.removeprefix("/")) + ("/" if directory_alone else "/?"), by_name, negated)


def _without_blank_end(line: str) -> str:
    """Spaces at the end do not count, but for one after a backslash."""
    text = line.rstrip(" ")
    backslashes = len(text) - len(text.rstrip("\\"))
    return text + " " if backslashes % 2 and len(text) < len(line) else text


def _expression(text: str) -> str:
    parts, at = [], 0
    while at < len(text):
        part, at = _piece(text, at)
        parts.append(part)
    return "".join(parts)


def _piece(text: str, at: int) -> tuple[str, int]:
    """The expression of what begins here, and where the next begins."""
    sign = text[at]
    if sign == "*":
        return _stars(text, at)
    if sign == "?":
        return _ANY, at + 1
    if sign == "[":
        return _bracket(text, at)
    if sign != "\\":
        return re.escape(sign), at + 1
    return (re.escape(text[at + 1]), at + 2) if at + 1 < len(text) else (_NEVER, at + 1)


def _stars(text: str, at: int) -> tuple[str, int]:
    end = at
    while text[end : end + 1] == "*":
        end += 1
    alone = (at == 0 or text[at - 1] == "/") and (end == len(text) or text[end] == "/" or text[end : end + 2] == "\\/")
    if end - at < 2 or not alone:
        return f"{_ANY}*", end
    if end == len(text):
        return ".*", end
    return "(?:.*/)?", end + (1 if text[end] == "/" else 2)


def _bracket(text: str, at: int) -> tuple[str, int]:
    """A set of characters, which never holds a slash; one without an end matches nothing."""
    start = at + 1
    negated = text[start : start + 1] in ("!", "^")
    start += negated
    at, members = start, []
    while at < len(text) and (text[at] != "]" or at == start):
        member, at = _member(text, at)
        if member is None:
            return _NEVER, len(text)
        members.append(member)
    if at >= len(text):
        return _NEVER, len(text)
    return f"(?!/)[{'^' if negated else ''}{''.join(members)}]", at + 1


def _member(text: str, at: int) -> tuple[str | None, int]:
    """A character, range or class of a set; None where the set can't be one."""
    if text.startswith("[:", at):
        end = text.find(":]", at)
        return (_CLASSES.get(text[at + 2 : end]), end + 2) if end > 0 else (None, at)
    first, at = _character(text, at)
    if text[at : at + 1] != "-" or text[at + 1 : at + 2] in ("]", ""):
        return re.escape(first), at
    last, at = _character(text, at + 1)
    # Of a range that is turned round, git takes the first character.
    return f"{re.escape(first)}-{re.escape(last)}" if first <= last else re.escape(first), at


def _character(text: str, at: int) -> tuple[str, int]:
    escaped = text[at] == "\\" and at + 1 < len(text)
    return text[at + escaped], at + escaped + 1
