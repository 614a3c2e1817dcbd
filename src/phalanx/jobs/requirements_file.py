"""Reads a requirements.txt and the files it includes as pip does; refuses, by line, what pip would read otherwise.

The rules are those of pip's `req_file.py`: how lines are joined, where comments begin, which options a file may have.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from phalanx import guest_file
from phalanx.errors import JobError

_LARGEST_BYTES = 1 << 20
_MAX_FILES = 100
_MAX_MISTAKES = 20
_COMMENT = re.compile(r"(^|\s+)#.*$")
_CODING = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*(?P<name>[-\w.]+)")
_INCLUDES = frozenset({"-r", "--requirement", "-c", "--constraint"})
_PLACES = frozenset({"-e", "--editable", "-f", "--find-links", "-i", "--index-url", "--pypi-url", "--extra-index-url"})
_WORDS = frozenset({"--no-binary", "--only-binary", "--trusted-host", "--use-feature"})
_FLAGS = frozenset({"--no-index", "--prefer-binary", "--require-hashes", "--pre"})
_OF_ONE_PACKAGE = frozenset({"--hash", "--config-settings", "--config-setting", "-C", "--global-option"})
_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S+(\s*;.+)?", re.IGNORECASE)
# On a node; pip takes a path with extras, too.
_ABSOLUTE = re.compile(r"(file:)?/[^\s;]*(\s*;.+)?")
# Paths mean one thing here and another in an environment that outlives the job's code.
_RELATIVE = re.compile(r"\.{1,2}(/|$)|file:(?!/)")
_IN_THE_CODE = (
    "For your own packages, set `--env PYTHONPATH=DIRECTORY`, or name a wheel on the shared directory by its"
    " absolute path."
)


def collect(path: Path) -> dict[str, str]:
    """Return the texts of the file and of those it includes, by their names below the file's directory.

    Raises JobError with the mistakes of all of them, each with its line. No line is quoted: an included file may be
    one with secrets.
    """
    path = path.absolute()
    files = _Files(path.parent)
    files.add(path, "")
    if files.mistakes:
        raise JobError("\n".join(files.mistakes[:_MAX_MISTAKES]), files.hint, code="requirements-file")
    return files.texts


@dataclass
class _Files:
    top: Path
    texts: dict[str, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)
    hint: str = "Write one requirement or option of pip on a line; other files that it includes stay below it."

    def add(self, path: Path, included_at: str) -> None:
        """Add a file and those that it includes. As pip reads it, a link keeps its own name and its own directory."""
        try:
            name = _normal(path).relative_to(_normal(self.top)).as_posix()
        except ValueError:
            self.mistakes.append(f"{included_at}: {path} is outside {self.top}")
            return
        if name in self.texts:
            return
        if len(self.texts) == _MAX_FILES:
            self.mistakes.append(f"{included_at}: more than {_MAX_FILES} files")
            return
        text = self.texts[name] = self._text(path, included_at)
        for number, line in _lines(text):
            self._read(line, path, f"{name}:{number}")

    def _text(self, path: Path, included_at: str) -> str:
        where = f"{included_at}: " if included_at else ""
        try:
            text = guest_file.read(path, _LARGEST_BYTES, within=self.top).decode("utf-8-sig")
        except OSError as error:
            self.mistakes.append(f"{where}can't read {path}: {error.strerror}")
            return ""
        except UnicodeDecodeError:
            self.mistakes.append(f"{where}{path} is not UTF-8 text")
            return ""
        coding = next(filter(None, map(_CODING.match, text.splitlines()[:2])), None)
        if coding and coding["name"].lower() not in ("utf-8", "utf8", "ascii"):
            self.mistakes.append(f"{where}{path} declares another encoding than UTF-8")
        return text

    def _read(self, line: str, path: Path, place: str) -> None:
        try:
            includes = _of_options(line) if line.startswith("-") else _of_requirement(line)
        except _InTheCodeError as error:
            self.mistakes.append(f"{place}: '{error}' is a path in the code, which the environment outlives")
            self.hint = _IN_THE_CODE
        except ValueError as error:
            self.mistakes.append(f"{place}: {error}")
        else:
            for include in includes:
                if "://" not in include:
                    self.add(path.parent / include, place)


class _InTheCodeError(Exception):
    """A path that is relative to the job's code."""


def _normal(path: Path) -> Path:
    return Path(os.path.normpath(path))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its first number: joined where one ends in a backslash, and without its comment."""
    begun, parts = 0, []
    for number, line in enumerate(text.splitlines(), 1):
        is_comment = _COMMENT.match(line) is not None
        begun = begun or number
        if line.endswith("\\") and not is_comment:
            parts.append(line.strip("\\"))
            continue
        yield begun, _COMMENT.sub("", "".join((*parts, " " * is_comment, line))).strip()
        begun, parts = 0, []
    yield begun, _COMMENT.sub("", "".join(parts)).strip()


def _of_options(line: str) -> list[str]:
    """Return the files that a line of options includes. Raises ValueError for an option that no file may have."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ValueError(f"its quotes are not closed ({error})") from None
    includes: list[str] = []
    while words:
        option, value = _option(words)
        if option in _INCLUDES:
            includes.append(value)
        elif option in _PLACES and "://" not in value and not _ABSOLUTE.fullmatch(value):
            raise _InTheCodeError(value)
    return includes


def _option(words: list[str]) -> tuple[str, str]:
    """Take an option and its value ("" for a flag) off the words."""
    word = words.pop(0)
    option, is_joined, value = word.partition("=")
    if word.startswith("-") and not word.startswith("--"):
        option, value = word[:2], word[2:]
        is_joined = value
    if option in _FLAGS and not is_joined:
        return option, ""
    if option not in _INCLUDES | _PLACES | _WORDS:
        raise ValueError("it has an option that phalanx does not know in a requirements file")
    if not is_joined:
        if not words:
            raise ValueError(f"{option} needs a value")
        value = words.pop(0)
    return option, value


def _of_requirement(line: str) -> list[str]:
    """Check the requirement of one package, with its own options; it includes no files."""
    from packaging.requirements import InvalidRequirement, Requirement  # here, because few commands read one

    if not line:
        return []
    head, *options = re.split(r"\s+(?=-)", line)
    if any(re.split(r"[=\s]", option)[0] not in _OF_ONE_PACKAGE for option in options):
        raise ValueError("it has an option that phalanx does not know behind a requirement")
    _refuse_relative(head)
    if _URL.fullmatch(head) or _ABSOLUTE.fullmatch(head):
        return []
    try:
        _refuse_relative(Requirement(head).url or "")
    except InvalidRequirement:
        raise ValueError("it is no requirement that pip reads (such as `numpy>=2`), no URL, no option") from None
    return []


def _refuse_relative(value: str) -> None:
    if _RELATIVE.match(value):
        raise _InTheCodeError(value)
