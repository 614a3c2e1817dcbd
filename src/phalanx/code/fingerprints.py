"""Hashes of files' contents, cached so that a file which has not changed need not be read again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from phalanx.code.cache import keep
from phalanx.code.code_tree import Entry

_READ_BYTES = 1 << 20
# A file that was written this recently may change again without a newer time stamp (git's "racy" entries).
_RACY_NS = 2_000_000_000
_DIRECTORIES_KEPT = 50


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
    with Path(path).open("rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
            size += len(data)
    return f"{digest.hexdigest()}-{size}"
