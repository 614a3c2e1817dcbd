"""The sources of a config: archives that are unpacked into directories."""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from localcloud.nodes.bootstrap.downloads import Downloads
from localcloud.nodes.bootstrap.failures import FailedError

_REMOTE = re.compile(r"(https?|ftp)://", re.IGNORECASE)
# The forge puts all files into one directory, whose name contains the commit.
_OF_GITHUB = re.compile(r"https?://github\.com/.*?/(zipball|tarball)/", re.IGNORECASE)
Entry = tuple[str, int, bytes]


def apply(sources: dict[str, str], downloads: Downloads) -> list[str]:
    """Unpack the archives; return the directories. Raises FailedError for what is no archive, or leaves it."""
    for directory in sorted(sources):
        place = sources[directory]
        data = downloads.fetch(place) if _REMOTE.match(place) else _read(place)
        _unpack(Path(directory), place, data)
    return sorted(sources)


def _read(path: str) -> bytes:
    if not Path(path).is_file():
        raise FailedError(f"{path} does not exist")
    return Path(path).read_bytes()


def _unpack(directory: Path, place: str, data: bytes) -> None:
    entries = list(_entries(place, data))
    if _OF_GITHUB.match(place) and len({name.partition("/")[0] for name, _mode, _content in entries}) == 1:
        entries = [(name.partition("/")[2], mode, content) for name, mode, content in entries]
    root = directory.resolve()
    for name, mode, content in entries:
        path = (root / name).resolve()
        if root not in path.parents:
            raise FailedError(f"{name} is not a sub-path of {directory}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode or 0o644)


def _entries(place: str, data: bytes) -> Iterator[Entry]:
    """Yield name, mode and content of each file in an archive."""
    held: io.BytesIO | None = io.BytesIO(data)
    try:
        with tarfile.open(fileobj=held, mode="r:*") as archive:
            for member in archive.getmembers():
                content = archive.extractfile(member) if member.isfile() else None
                if content:
                    yield member.name, member.mode & 0o777, content.read()
        return
    except tarfile.TarError:
        held = io.BytesIO(data)
    if not zipfile.is_zipfile(held):
        raise FailedError(f"Unsupported source file (not zip or tarball): {place}")
    with zipfile.ZipFile(held) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                yield info.filename, info.external_attr >> 16 & 0o777, archive.read(info)
