"""Applies .gitignore as git does: nested files, negation, directories; .phalanxignore takes precedence."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from phalanx import guest_file
from phalanx.code.ignore_pattern import Pattern, parse
from phalanx.errors import JobError

# Of one directory, the last that has a line that matches decides.
_OF_GIT, _OF_PHALANX = FILES = (".gitignore", ".phalanxignore")
_LARGEST_BYTES = 1 << 20


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
                f"{path} is a link, and git reads no rules through one", "Make it a file.", code="ignore-rules"
            )
        content = guest_file.read(path, _LARGEST_BYTES)
    except (FileNotFoundError, IsADirectoryError):
        return
    except OSError as error:
        raise JobError(
            f"can't read {path}: {error.strerror}", "It says which files are not sent.", code="cannot-read"
        ) from None
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        pattern = parse(line.removesuffix(b"\r").decode("latin-1"))
        if pattern:
            yield pattern


def _bytewise(name: str) -> str:
    """Decode a name to one character per byte, because git compares bytes."""
    return os.fsencode(name).decode("latin-1")
