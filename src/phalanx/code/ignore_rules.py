"""Applies .gitignore as git does: nested files, negation, directories; .phalanxignore takes precedence."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from phalanx import guest_file
from phalanx.errors import JobError

# Of one directory, the last that has a line that matches decides.
_OF_GIT, _OF_PHALANX = FILES = (".gitignore", ".phalanxignore")
_LARGEST_BYTES = 1 << 20
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
_STAR = f"{_ANY}*"
_DEEP = "(?:.*/)?"


@dataclass(frozen=True)
class _Run:
    """Consecutive lines that are all negated or all not, as one expression for names and one for paths."""

    negated: bool
    names: re.Pattern[str]
    paths: re.Pattern[str]


@dataclass(frozen=True)
class _Layer:
    """One file's rules. They apply to `before` plus a name in the tree without its first `strip` characters.

    `file` is its name, below the tree or above it (`../.gitignore`).
    """

    file: str
    runs: tuple[_Run, ...]
    strip: int = 0
    before: str = ""

    def verdict(self, name: str, is_directory: bool) -> bool | None:
        """Whether to exclude a name; None when these rules do not decide."""
        path = self.before + name[self.strip :] + "/" * is_directory
        last = path[path.rfind("/", 0, len(path) - is_directory) + 1 :]
        for run in reversed(self.runs):
            if run.names.fullmatch(last) or run.paths.fullmatch(path):
                return not run.negated
        return None


@dataclass(frozen=True)
class IgnoreRules:
    """The rules for one directory of a tree: its own take precedence over those of the directories above."""

    layers: tuple[_Layer, ...] = ()

    def excluded_by(self, name: str, is_directory: bool) -> str:
        """Return the file that excludes `name`, relative to the tree; "" if none does.

        Do not ask for names below an excluded directory.
        """
        if not self.layers:
            return ""
        text = _bytewise(name)
        for layer in reversed(self.layers):
            verdict = layer.verdict(text, is_directory)
            if verdict is not None:
                return layer.file if verdict else ""
        return ""

    def within(self, directory: str, prefix: str, names: Collection[str]) -> IgnoreRules:
        """Return the rules inside `directory`, which is `prefix` in the tree and contains these names.

        In a submodule, or any other repository, git doesn't apply the rules of the one around it.
        """
        layers = self.layers
        if ".git" in names:
            layers = tuple(layer for layer in layers if layer.file.endswith(_OF_PHALANX))
        strip = len(_bytewise(prefix))
        own = (_Layer(prefix + name, _runs(directory, name), strip) for name in FILES if name in names)
        return IgnoreRules((*layers, *own))


def rules_above(directory: Path) -> IgnoreRules:
    """Return the git repository's rules above `directory`; none if they exclude the directory itself."""
    here = directory.resolve()
    root = next((place for place in (here, *here.parents) if (place / ".git").exists()), here)
    parts = here.relative_to(root).parts
    rules = IgnoreRules()
    for depth, part in enumerate(parts):
        rules = rules.within(str(root.joinpath(*parts[:depth])), "/".join((*parts[:depth], "")), FILES)
        if rules.excluded_by("/".join((*parts[:depth], part)), is_directory=True):
            return IgnoreRules()
    offset = _bytewise("".join(f"{part}/" for part in parts))
    return IgnoreRules(
        tuple(
            _Layer(os.path.relpath(layer.file, here.relative_to(root)), layer.runs, before=offset[layer.strip :])
            for layer in rules.layers
            if layer.runs
        )
    )


def _runs(directory: str, name: str) -> tuple[_Run, ...]:
    grouped = itertools.groupby(_patterns(Path(directory, name)), key=lambda pattern: pattern.negated)
    return tuple(_run(negated, list(patterns)) for negated, patterns in grouped)


def _run(negated: bool, patterns: list[Pattern]) -> _Run:
    return _Run(
        negated,
        _any_of(pattern.expression for pattern in patterns if pattern.by_name),
        _any_of(pattern.expression for pattern in patterns if not pattern.by_name),
    )


def _any_of(expressions: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(expressions) or "(?!)", re.DOTALL)


def _patterns(path: Path) -> Iterator[Pattern]:
    try:
        if path.is_symlink():
            raise JobError(
                f"{guest_file.shown(path)} is a link, and git reads no rules through one",
                "Make it a file.",
                code="ignore-rules",
            )
        content = guest_file.read(path, _LARGEST_BYTES)
    except (FileNotFoundError, IsADirectoryError):
        return
    except OSError as error:
        raise JobError(
            f"can't read {guest_file.shown(path)}: {error.strerror}",
            "It says which files are not sent.",
            code="cannot-read",
        ) from None
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        pattern = parse(line.removesuffix(b"\r").decode("latin-1"))
        if pattern:
            yield pattern


def _bytewise(name: str) -> str:
    """Decode a name to one character per byte, because git compares bytes."""
    return os.fsencode(name).decode("latin-1")


class Pattern(NamedTuple):
    """One line: `expression` matches the path below the rules' directory, or (`by_name`) only its last part.

    A directory's path ends with a slash. `negated`: what matches is sent after all.
    """

    expression: str
    by_name: bool
    negated: bool


def parse(line: str) -> Pattern | None:
    """Parse a line, one character per byte; return None for a comment or an empty line."""
    text = _without_trailing_spaces(line)
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text[negated:]
    directory_only = text.endswith("/")
    text = text.removesuffix("/")
    if not text:
        return None
    by_name = "/" not in text
    expression = _expression(text.removeprefix("/"), by_name)
    # The slash at the end of a directory's path is never the pattern's: `a/*` does not match the directory `a`.
    return Pattern(f"{expression}(?<!/)/{'' if directory_only else '?'}", by_name, negated)


def _without_trailing_spaces(line: str) -> str:
    """Remove trailing spaces, except one after a backslash."""
    text = line.rstrip(" ")
    backslashes = len(text) - len(text.rstrip("\\"))
    return text + " " if backslashes % 2 and len(text) < len(line) else text


def _expression(text: str, by_name: bool) -> str:
    # git compares the text before the first sign separately, and reads the rest as a pattern: `a**/b` is a + `**/b`.
    parts, at = ([], 0) if by_name else _literal(text)
    text, at = text[at:], 0
    while at < len(text):
        part, at = _piece(text, at)
        parts.append(part)
    return _joined(parts)


def _literal(text: str) -> tuple[list[str], int]:
    """Return the text before the first sign, and where that sign is."""
    end = next((at for at, sign in enumerate(text) if sign in "*?[\\"), len(text))
    return [re.escape(text[:end])], end


def _joined(parts: list[str]) -> str:
    """Join the parts to one expression that takes time linear in the path, however many stars there are.

    The text between two stars is matched at its first occurrence, which leaves the most to the next star. So a star
    never passes the start of such a text, and the expression need not try all ways to divide the path among stars.
    """
    blocks = [_sections(block, _STAR, _ANY) for block in _split(parts, _DEEP)]
    return _sections(blocks, _DEEP, f"{_STAR}/", is_split=True)


def _sections(parts: list[str], star: str, one: str, is_split: bool = False) -> str:
    first, *others = parts if is_split else ["".join(section) for section in _split(parts, star)]
    between = "".join(f"(?:(?!{section}){one})*{section}" for section in others[:-1])
    return first + between + "".join(f"{star}{section}" for section in others[-1:])


def _split(parts: list[str], star: str) -> list[list[str]]:
    """Split the parts at each occurrence of this star."""
    sections: list[list[str]] = [[]]
    for part in parts:
        if part == star:
            sections.append([])
        else:
            sections[-1].append(part)
    return sections


def _piece(text: str, at: int) -> tuple[str, int]:
    """Convert the piece that begins here; return its expression and where the next piece begins."""
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
    whole = (at == 0 or text[at - 1] == "/") and (end == len(text) or text[end] == "/" or text[end : end + 2] == "\\/")
    if end - at < 2 or not whole:
        return _STAR, end
    if end == len(text):
        return ".*", end
    return _DEEP, end + (1 if text[end] == "/" else 2)


def _bracket(text: str, at: int) -> tuple[str, int]:
    """Convert a bracket expression, which never matches a slash; one that is not closed matches nothing."""
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
    """Convert a character, range or class in brackets; return None where it is invalid."""
    if text.startswith("[:", at):
        end = text.find(":]", at)
        return (_CLASSES.get(text[at + 2 : end]), end + 2) if end > 0 else (None, at)
    first, at = _character(text, at)
    if text[at : at + 1] != "-" or text[at + 1 : at + 2] in ("]", ""):
        return re.escape(first), at
    last, at = _character(text, at + 1)
    # Of a reversed range, git takes the first character.
    return f"{re.escape(first)}-{re.escape(last)}" if first <= last else re.escape(first), at


def _character(text: str, at: int) -> tuple[str, int]:
    escaped = text[at] == "\\" and at + 1 < len(text)
    return text[at + escaped], at + escaped + 1
