"""What of the user's directory goes over with a job: all but what is ignored, and no more than code can be."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from phalanx.code.ignore_rules import IgnoreRules, rules_above
from phalanx.errors import JobError

# Never part of the code: other tools' state, and what is made again from the code.
IGNORED = frozenset(
    {
        *(".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules", ".phalanx", ".mypy_cache", ".pytest_cache"),
        *(".ruff_cache", ".tox", ".nox", ".ipynb_checkpoints", ".terraform", ".DS_Store", ".idea", ".vscode"),
    }
)
MOST_BYTES = 2 << 30
# The shared directory makes some hundred files a second.
MOST_FILES = 100_000

# What was found, its name in the tree, and the rules that hold beside it.
_Found = tuple[os.DirEntry[str], str, IgnoreRules]

_ALONE = "Run from the directory that holds the code alone (or name it with --directory)"


@dataclass(frozen=True)
class Entry:
    """One file, directory or symbolic link: where it is, its name in the copy (with slashes), and what lstat says."""

    path: str
    name: str
    status: os.stat_result

    @property
    def bytes(self) -> int:
        return self.status.st_size if self.is_file else 0

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)


@dataclass(frozen=True)
class CodeTree:
    """Everything of a directory that is sent; `left_out` names what ignore files keep here (directories end in /)."""

    directory: Path
    entries: tuple[Entry, ...]
    left_out: frozenset[str] = frozenset()

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    def left_out_of(self, words: tuple[str, ...]) -> list[str]:
        """Those of a command's words that name something which an ignore file keeps here."""
        names = {word: os.path.normpath(word.rpartition("=")[2]) for word in words}
        return [word for word, name in names.items() if self._keeps_here(name)]

    def _keeps_here(self, name: str) -> bool:
        parents = (name[: at + 1] for at, sign in enumerate(name) if sign == "/")
        return name in self.left_out or f"{name}/" in self.left_out or any(one in self.left_out for one in parents)


def scan(directory: Path) -> CodeTree:
    """Look at everything below directory, but IGNORED names, virtual environments and what ignore files name.

    Raises JobError for what is no directory of code, or too large to be one.
    """
    _refuse_no_code(directory)
    scanner = _Scanner()
    entries: list[Entry] = []
    total = 0
    try:
        for entry in scanner.walk(str(directory), rules_above(directory)):
            entries.append(entry)
            total += entry.bytes
            if total > MOST_BYTES or len(entries) > MOST_FILES:
                raise _too_large(directory, entries, total)
    except OSError as error:
        raise unreadable(error) from error
    return CodeTree(directory, tuple(entries), frozenset(scanner.left_out))


def unreadable(error: OSError) -> JobError:
    """What to say of a file that can't be sent."""
    return JobError(f"can't read {error.filename!r}: {error.strerror}", "Every file of the code must be readable.")


def largest(entries: tuple[Entry, ...] | list[Entry]) -> str:
    """The three largest files, with their sizes."""
    found = sorted(entries, key=lambda entry: entry.bytes, reverse=True)[:3]
    return ", ".join(f"{entry.name!r} ({size_text(entry.bytes)})" for entry in found)


def size_text(count: int) -> str:
    """A number of bytes as people say it."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


class _Scanner:
    """Walks a directory, and remembers what ignore files left out of it."""

    def __init__(self) -> None:
        self.left_out: list[str] = []

    def walk(self, directory: str, rules: IgnoreRules) -> Iterator[Entry]:
        """Everything below, each directory before what it holds; what vanishes meanwhile is left out.

        Without recursion, as directories may be nested deeper than calls.
        """
        waiting = self._held_by(directory, "", rules)
        while waiting:
            item, name, rules = waiting.pop()
            try:
                entry = Entry(item.path, name, item.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue
            if self._goes_over(entry, rules):
                yield entry
                if stat.S_ISDIR(entry.status.st_mode):
                    waiting += self._held_by(item.path, f"{name}/", rules)

    def _held_by(self, directory: str, prefix: str, rules: IgnoreRules) -> list[_Found]:
        """What a directory holds, the last name first."""
        try:
            with os.scandir(directory) as found:
                items = {item.name: item for item in found}
        except FileNotFoundError:
            return []
        rules = rules.within(directory, prefix, items)
        names = (name for name in sorted(items, reverse=True) if name not in IGNORED and not name.endswith(".pyc"))
        return [(items[name], prefix + name, rules) for name in names]

    def _goes_over(self, entry: Entry, rules: IgnoreRules) -> bool:
        mode = entry.status.st_mode
        is_directory = stat.S_ISDIR(mode)
        if rules.leave_out(entry.name, is_directory):
            self.left_out.append(entry.name + "/" * is_directory)
            return False
        if is_directory:
            # A virtual environment is of this machine, whatever its name.
            return not os.path.exists(f"{entry.path}/pyvenv.cfg")  # noqa: PTH110 - once per directory; Path costs more
        return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _refuse_no_code(directory: Path) -> None:
    if not directory.is_dir():
        raise JobError(f"{directory} is not a directory", "It is what goes over with the job.")
    here = directory.resolve()
    if here == Path(here.anchor):
        raise JobError(f"{here} is the whole machine, not a directory of code", f"{_ALONE}.")
    if here == Path(os.environ.get("HOME") or "/").resolve():
        raise JobError(f"{here} is your home directory, not a directory of code", f"{_ALONE}.")


def _too_large(directory: Path, entries: list[Entry], total: int) -> JobError:
    held = f"more than {size_text(MOST_BYTES)}" if total > MOST_BYTES else f"more than {MOST_FILES} files"
    return JobError(
        f"{directory} holds {held}, which is the most that goes over with a job. The largest: {largest(entries)}",
        f"{_ALONE}; `phalanx put` takes data to the shared directory once, and a line in .gitignore or "
        ".phalanxignore keeps them here.",
    )
