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

# Read as one file, in this order: the last line that matches decides.
FILES = (".gitignore", ".phalanxignore")
_LARGEST_BYTES = 1 << 20


@dataclass(frozen=True)
class _Run:
    """Consecutive lines that are all negated or all not, as one expression for names and one for paths."""

    negated: bool
    names: re.Pattern[str]
    paths: re.Pattern[str]


@dataclass(frozen=True)
class _Layer:
    """One directory's rules. They apply to `before` plus a name in the tree without its first `strip` characters."""

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

    def excludes(self, name: str, is_directory: bool) -> bool:
        """Whether to exclude `name`, relative to the tree; do not ask for names below an excluded directory."""
        if not self.layers:
            return False
        text = _bytewise(name)
        verdicts = (layer.verdict(text, is_directory) for layer in reversed(self.layers))
        return next((verdict for verdict in verdicts if verdict is not None), False)

    def within(self, directory: str, prefix: str, names: Collection[str]) -> IgnoreRules:
        """Return the rules inside `directory`, which is `prefix` in the tree and contains these names."""
        if not any(name in names for name in FILES):
            return self
        return IgnoreRules((*self.layers, _Layer(_runs(directory), strip=len(_bytewise(prefix)))))


def rules_above(directory: Path) -> IgnoreRules:
    """Return the git repository's rules above `directory`; none if they exclude the directory itself."""
    here = directory.resolve()
    root = next((place for place in (here, *here.parents) if (place / ".git").exists()), here)
    parts = here.relative_to(root).parts
    rules = IgnoreRules()
    for depth, part in enumerate(parts):
        rules = rules.within(str(root.joinpath(*parts[:depth])), "/".join((*parts[:depth], "")), FILES)
        if rules.excludes("/".join((*parts[:depth], part)), is_directory=True):
            return IgnoreRules()
    offset = _bytewise("".join(f"{part}/" for part in parts))
    return IgnoreRules(tuple(_Layer(layer.runs, before=offset[layer.strip :]) for layer in rules.layers if layer.runs))


def _runs(directory: str) -> tuple[_Run, ...]:
    grouped = itertools.groupby(_patterns(directory), key=lambda pattern: pattern.negated)
    return tuple(_run(negated, list(patterns)) for negated, patterns in grouped)


def _run(negated: bool, patterns: list[Pattern]) -> _Run:
    return _Run(
        negated,
        _any_of(pattern.expression for pattern in patterns if pattern.by_name),
        _any_of(pattern.expression for pattern in patterns if not pattern.by_name),
    )


def _any_of(expressions: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(expressions) or "(?!)", re.DOTALL)


def _patterns(directory: str) -> Iterator[Pattern]:
    for name in FILES:
        path = Path(directory, name)
        try:
            if path.is_symlink():
                raise JobError(
                    f"{path} is a link, and git reads no rules through one", "Make it a file.", code="ignore-rules"
                )
            content = guest_file.read(path, _LARGEST_BYTES)
        except (FileNotFoundError, IsADirectoryError):
            continue
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
