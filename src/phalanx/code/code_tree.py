"""Scans the user's directory for the code of a job: all that is not ignored, within limits."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from phalanx import guest_file
from phalanx.code.ignore_rules import IgnoreRules, rules_above
from phalanx.counts import size_text
from phalanx.errors import JobError

# Never part of the code: other tools' state, and files that are generated from the code.
IGNORED = frozenset(
    {
        *(".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules", ".phalanx", ".mypy_cache", ".pytest_cache"),
        *(".ruff_cache", ".tox", ".nox", ".ipynb_checkpoints", ".terraform", ".DS_Store", ".idea", ".vscode"),
    }
)
_ON_NODES = ("/usr/", "/bin/", "/sbin/", "/lib", "/etc/", "/dev/")
MAX_BYTES = 2 << 30
# The shared directory creates a few hundred files per second.
MAX_FILES = 100_000
# Of this machine's CPU, for all names and all ignore files: 100,000 names and some hundred patterns take 5 s.
_LONGEST_CPU_S = 30.0

# An item, its name in the tree, and the rules that apply to it.
_Found = tuple[os.DirEntry[str], str, IgnoreRules]

_CODE_ONLY = "Run from a directory that contains only the code, or name it with --directory"


@dataclass(frozen=True)
class Entry:
    """One file, directory or symbolic link: its path, its name in the copy (with slashes), and its lstat result."""

    path: str
    name: str
    status: os.stat_result

    @property
    def bytes(self) -> int:
        return self.status.st_size if self.is_file else 0

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.status.st_mode)


class LeftOut(NamedTuple):
    """What an ignore file excludes (a directory ends in /), and its size, as far as it was found if not `is_whole`."""

    name: str
    file: str
    bytes: int
    is_whole: bool


@dataclass(frozen=True)
class CodeTree:
    """What is sent of a directory.

    `left_out` has what ignore files exclude (directories end in /), each with the file that excludes it.
    """

    directory: Path
    entries: tuple[Entry, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    def left_out_of(self, words: tuple[str, ...]) -> dict[str, str]:
        """Return those of a command's words that name what an ignore file excludes, or what is in it, and its name."""
        names = {word: self.what_keeps(os.path.normpath(word.rpartition("=")[2])) for word in words}
        return {word: name for word, name in names.items() if name}

    def links_out(self) -> dict[str, str]:
        """Return the links to what exists on this machine outside the directory, with where they lead.

        A link to a directory of programs, which nodes have too, is not among them; nor is one that leads nowhere here,
        and may lead to the shared directory there.
        """
        own = str(self.directory)

        def look(name: Callable[[str], object]) -> dict[str, str]:
            found: dict[str, str] = {}
            for link in self.entries:
                if link.is_link:
                    name(link.path)
                    if _is_only_here(link.path, own):
                        found[link.name] = os.readlink(link.path)  # noqa: PTH115 - Path costs more
            return found

        try:
            return guest_file.answering(own, look)
        except OSError:  # a file system that is away: the job does without it
            return {}

    def measured(self, within_s: float) -> list[LeftOut]:
        """Return what is left out with its size, the largest first, as far as it can be read in this time.

        It may be on a file system that is away, so this waits no longer.
        """
        sizes = dict.fromkeys(self.left_out, 0)
        done: set[str] = set()
        end = time.monotonic() + within_s

        def measure() -> None:
            for name in self.left_out:
                for size in _sizes(f"{self.directory}/{name}"):
                    sizes[name] += size
                    if time.monotonic() > end:
                        return
                done.add(name)

        thread = threading.Thread(target=measure, daemon=True)
        thread.start()
        thread.join(within_s)
        found = [LeftOut(name, file, sizes[name], name in done) for name, file in self.left_out.items()]
        return sorted(found, key=lambda one: one.bytes, reverse=True)

    def what_keeps(self, *names: str) -> str:
        """Return which excluded file or directory the first of these names is, or is in; "" if none is there."""
        for name in names:
            parents = (name[: at + 1] for at, sign in enumerate(name) if sign == "/")
            kept = next((one for one in (name, f"{name}/", *parents) if one in self.left_out), "")
            if kept in (name, f"{name}/") or (kept and self._is_there(name)):
                return kept
        return ""

    def _is_there(self, name: str) -> bool:
        """Whether there is a file or directory below one that was not walked through."""
        path = self.directory / name
        try:
            return guest_file.answer(path, os.path.lexists, path)
        except OSError:  # its file system is away
            return False


def _sizes(path: str) -> Iterator[int]:
    """Yield the sizes of the files at a path; of an empty directory, 0."""
    yield 0
    with contextlib.suppress(OSError):
        if not stat.S_ISDIR((status := os.lstat(path)).st_mode):
            yield status.st_size
    for directory, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.lstat(f"{directory}/{name}").st_size


def _is_only_here(path: str, directory: str) -> bool:
    """Whether a link leads out of the directory, to what exists here."""
    leads_out = guest_file.leads_out(path, directory) and not os.path.realpath(path).startswith(_ON_NODES)
    return leads_out and os.path.exists(path)  # noqa: PTH110 - Path costs more


def scan(directory: Path) -> CodeTree:
    """Scan everything below a directory, except IGNORED names, virtual environments and what ignore files exclude.

    Raises JobError for what is not a directory of code, or too large to be one.
    """
    try:
        return guest_file.answering(directory, lambda name: _scan(directory, name))
    except OSError as error:
        raise unreadable(error) from error


def _scan(directory: Path, name: Callable[[str], object]) -> CodeTree:
    _require_code(directory)
    scanner = _Scanner(name)
    entries: list[Entry] = []
    total = 0
    for entry in scanner.walk(str(directory), rules_above(directory)):
        entries.append(entry)
        total += entry.bytes
        if total > MAX_BYTES or len(entries) > MAX_FILES:
            raise _too_large(directory, entries, total)
    return CodeTree(directory, tuple(entries), scanner.left_out)


def unreadable(error: OSError) -> JobError:
    """The error for a file that can't be sent."""
    return JobError(
        f"can't read {error.filename!r}: {error.strerror}",
        "Every file of the code must be readable.",
        code="cannot-read",
    )


def largest(entries: tuple[Entry, ...] | list[Entry]) -> str:
    """Name the three largest files with their sizes."""
    found = sorted(entries, key=lambda entry: entry.bytes, reverse=True)[:3]
    return ", ".join(f"{entry.name!r} ({size_text(entry.bytes)})" for entry in found)


class _Scanner:
    """Walks a directory and records what ignore files exclude; `name` gets each path before it is read."""

    def __init__(self, name: Callable[[str], object]) -> None:
        self.left_out: dict[str, str] = {}
        self._name = name
        self._begun_s = time.thread_time()

    def walk(self, directory: str, rules: IgnoreRules) -> Iterator[Entry]:
        """Yield everything below, each directory before its contents; skip what vanishes meanwhile.

        There is no recursion, because directories may be nested deeper than calls.
        """
        waiting = self._contents(directory, "", rules)
        while waiting:
            item, name, rules = waiting.pop()
            if time.thread_time() - self._begun_s > _LONGEST_CPU_S:
                raise _too_much_work(item.path)
            self._name(item.path)
            try:
                entry = Entry(item.path, name, item.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue
            if self._is_sent(entry, rules):
                yield entry
                if stat.S_ISDIR(entry.status.st_mode):
                    waiting += self._contents(item.path, f"{name}/", rules)

    def _contents(self, directory: str, prefix: str, rules: IgnoreRules) -> list[_Found]:
        """List a directory's contents in reverse order of their names."""
        try:
            with os.scandir(directory) as found:
                items = {item.name: item for item in found}
        except FileNotFoundError:
            return []
        rules = rules.within(directory, prefix, items)
        names = (name for name in sorted(items, reverse=True) if name not in IGNORED and not name.endswith(".pyc"))
        return [(items[name], prefix + name, rules) for name in names]

    def _is_sent(self, entry: Entry, rules: IgnoreRules) -> bool:
        mode = entry.status.st_mode
        is_directory = stat.S_ISDIR(mode)
        if by := rules.excluded_by(entry.name, is_directory):
            self.left_out[entry.name + "/" * is_directory] = by
            return False
        if is_directory:
            # A virtual environment, whatever its name, belongs to this machine.
            return not os.path.exists(f"{entry.path}/pyvenv.cfg")  # noqa: PTH110 - once per directory; Path costs more
        return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _require_code(directory: Path) -> None:
    if not directory.is_dir():
        raise JobError(
            f"{directory} is not a directory", "It is the code that is sent with the job.", code="no-directory"
        )
    here = directory.resolve()
    if here == Path(here.anchor):
        raise JobError(f"{here} is the whole machine, not a directory of code", f"{_CODE_ONLY}.", code="not-code")
    if here == Path(os.environ.get("HOME") or "/").resolve():
        raise JobError(f"{here} is your home directory, not a directory of code", f"{_CODE_ONLY}.", code="not-code")


def _too_much_work(path: str) -> JobError:
    return JobError(
        f"to find out what is sent took more than {_LONGEST_CPU_S:g} s of CPU time, up to {guest_file.shown(path)}",
        f"{_CODE_ONLY}, or with fewer names and fewer patterns in .gitignore and .phalanxignore.",
        code="code-too-large",
    )


def _too_large(directory: Path, entries: list[Entry], total: int) -> JobError:
    excess = f"more than {size_text(MAX_BYTES)}" if total > MAX_BYTES else f"more than {MAX_FILES} files"
    return JobError(
        f"{directory} contains {excess}, the limit for a job's code. The largest files: {largest(entries)}",
        f"{_CODE_ONLY}; copy data to the shared directory once with `phalanx put`, and exclude it by a line in "
        ".gitignore or .phalanxignore.",
        code="code-too-large",
    )
