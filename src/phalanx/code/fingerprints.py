"""Names of files' contents, and what is remembered of them: a file that looks as it did need not be read again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from phalanx.code.cache import keep
from phalanx.code.code_tree import Entry

_READ_BYTES = 1 << 20
# A file that was written this short a time ago may be written again without a newer time stamp (as git has it).
_RACY_NS = 2_000_000_000
_DIRECTORIES_KEPT = 50


class Fingerprints:
    """Of one directory's files; `keep` writes down what was found for the next time."""

    def __init__(self, directory: Path, cache: Path) -> None:
        name = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:24]
        self._path = cache / f"code-{name}.json"
        self._known = self._read()
        self._new: dict[str, list[object]] = {}

    def of(self, entry: Entry) -> str:
        """SHA-256 and size of its content. Raises OSError."""
        status = entry.status
        looks = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        known = self._known.get(entry.name)
        found = known[-1] if known and known[:-1] == looks else _digest(entry.path)
        self._new[entry.name] = [*looks, found]
        return str(found)

    def keep(self) -> None:
        """Remember what was found; without a place for it, all is read again the next time."""
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
