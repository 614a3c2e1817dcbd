"""Sends a large directory of code to the head, which requests only the contents that no earlier job brought."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from phalanx import guest_file
from phalanx.code.bundle import SendProgress
from phalanx.code.cache import keep
from phalanx.code.code_tree import CodeTree, Entry, largest, unreadable
from phalanx.counts import size_text
from phalanx.ssh.head_answers import InvalidAnswerError

WARN_BYTES = 200 << 20
_READ_BYTES = 1 << 20
_VANISHED = -1
# A file that was written this recently may change again without a newer time stamp (git's "racy" entries).
_RACY_NS = 2_000_000_000
_DIRECTORIES_KEPT = 50


class Upload:
    """A tree to send; the head's codestore makes the copy from its `manifest` (JSON), which lists every entry."""

    def __init__(self, tree: CodeTree, cache: Path) -> None:
        known = Fingerprints(tree.directory, cache)
        listed = list(_listed(tree, known))
        known.keep()
        self._entries = [entry for entry, _ in listed]
        self._names = [record[1] if len(record) == 4 else None for _, record in listed]
        self._by_content: dict[object, list[Entry]] = {}  # name of a content → the entries that have it
        for entry, name in zip(self._entries, self._names, strict=True):
            self._by_content.setdefault(name, []).append(entry)
        self.manifest = json.dumps([record for _, record in listed]).encode()

    def send(self, out: IO[bytes], numbers: Sequence[int], progress: Callable[[SendProgress], None]) -> None:
        """Write the contents of these entries, each after its length. Raises JobError, or OSError when `out` breaks.

        Raises InvalidAnswerError for numbers that are unknown or repeated: the head's codestore requests none.
        """
        if len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(len(self._entries))):
            raise InvalidAnswerError("it requests entries that the code does not have")
        wanted = [self._entries[number] for number in numbers]
        if not all(stat.S_ISREG(entry.status.st_mode) for entry in wanted):
            raise InvalidAnswerError("it requests the content of what is no file")
        total, sent = sum(entry.bytes for entry in wanted), 0
        if total > WARN_BYTES:
            warning = (
                f"sending {size_text(total)} of code, most of it {largest(wanted)}; put data on the shared directory"
            )
            progress(SendProgress(0, 0, total, warning))
        for count, number in enumerate(numbers, 1):
            self._send_one(out, number)
            sent += self._entries[number].bytes
            progress(SendProgress(count, sent, total))

    def _send_one(self, out: IO[bytes], number: int) -> None:
        """Send an entry's content from any file that has it: one may have vanished since the scan."""
        for entry in self._by_content[self._names[number]]:
            try:
                content = guest_file.Content(entry.path, os.O_NOFOLLOW)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise unreadable(error) from error
            _write(out, content)
            return
        out.write(_VANISHED.to_bytes(8, "big", signed=True))


def _listed(tree: CodeTree, known: Fingerprints) -> Iterator[tuple[Entry, list[object]]]:
    """Yield each entry with its record for the codestore; skip those that have vanished."""
    for entry in tree.entries:
        record = _record(entry, known)
        if record is not None:
            yield entry, [entry.name, *record]


def _record(entry: Entry, known: Fingerprints) -> list[object] | None:
    mode = entry.status.st_mode
    try:
        if stat.S_ISDIR(mode):
            return []
        if stat.S_ISLNK(mode):
            # Verbatim; Path would normalize it.
            return [guest_file.answer(entry.path, lambda: os.readlink(entry.path))]  # noqa: PTH115
        return [known.of(entry), stat.S_IMODE(mode), entry.status.st_mtime_ns]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(error) from error


def _write(out: IO[bytes], content: guest_file.Content) -> None:
    """Write a file's current length and as many bytes, padded with zeros if it is truncated meanwhile."""
    left, padded = content.size, guest_file.Padded(content)
    out.write(left.to_bytes(8, "big", signed=True))
    while left:
        try:
            data = padded.read(min(left, _READ_BYTES))
        except OSError as error:
            raise unreadable(error) from error
        if padded.failure:
            raise unreadable(padded.failure) from padded.failure
        out.write(data)
        left -= len(data)


class Fingerprints:
    """The fingerprints of one directory's files; `keep` saves them for the next time."""

    def __init__(self, directory: Path, cache: Path) -> None:
        name = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:24]
        self._path = cache / f"code-{name}.json"
        self._known = self._read()
        self._new: dict[str, list[object]] = {}

    def of(self, entry: Entry) -> str:
        """Return the SHA-256 and the size of a file's content. Raises OSError."""
        status = entry.status
        identity = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        known = self._known.get(entry.name)
        found = known[-1] if known and known[:-1] == identity else _digest(entry.path)
        self._new[entry.name] = [*identity, found]
        return str(found)

    def keep(self) -> None:
        """Save the fingerprints; if that fails, all files are read again the next time."""
        before = time.time_ns() - _RACY_NS
        settled = {name: known for name, known in self._new.items() if int(str(known[3])) < before}
        if settled == self._known:
            return
        keep(self._path, json.dumps(settled).encode(), _DIRECTORIES_KEPT)

    def _read(self) -> dict[str, list[object]]:
        try:
            known = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


def _digest(path: str) -> str:
    digest, size = hashlib.sha256(), 0
    content = guest_file.Content(path, os.O_NOFOLLOW)
    while data := content.read(_READ_BYTES):
        digest.update(data)
        size += len(data)
    return f"{digest.hexdigest()}-{size}"
