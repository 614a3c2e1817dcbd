"""The files of a config, from the template, the web or S3, and its sources, archives that are unpacked."""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from localcloud.nodes.bootstrap.downloads import Downloads
from localcloud.nodes.bootstrap.failures import FailedError
from localcloud.nodes.bootstrap.mustache import render

_NOT_FOR_OTHERS = 0o775
_REMOTE = re.compile(r"(https?|ftp)://", re.IGNORECASE)
# The forge puts all files into one directory, whose name contains the commit.
_OF_GITHUB = re.compile(r"https?://github\.com/.*?/(zipball|tarball)/", re.IGNORECASE)
Entry = tuple[str, int, bytes]


def apply(files: dict[str, dict[str, Any]], downloads: Downloads) -> list[str]:
    """Write the files; return the paths of those that changed. A file that existed stays beside the new one as .bak."""
    return [name for name in sorted(files) if _write(Path(name), files[name], downloads)]


def _write(path: Path, given: dict[str, Any], downloads: Downloads) -> bool:
    if not path.is_absolute():
        raise FailedError(f"File specified with non-absolute path: {path}")
    mode = int(str(given["mode"]), 8) if "mode" in given else None
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode is not None and stat.S_ISLNK(mode):
        return _link(path, given)
    content = _content(path, given, downloads)
    before = path.read_bytes() if path.is_file() else None
    old_mode = stat.S_IMODE(path.stat().st_mode) if before is not None else None
    _back_up(path)
    path.write_bytes(content)
    default = old_mode if old_mode is not None else stat.S_IMODE(path.stat().st_mode) & _NOT_FOR_OTHERS
    path.chmod(stat.S_IMODE(mode) if mode is not None else default)
    _own(path, given)
    return content != before


def _link(path: Path, given: dict[str, Any]) -> bool:
    if "content" not in given:
        raise FailedError(f"{path}: symbolic link specified without a destination")
    if path.is_symlink() and str(path.readlink()) == given["content"]:
        return False
    _back_up(path)
    path.symlink_to(given["content"])
    _own(path, given)
    return True


def _back_up(path: Path) -> None:
    if path.exists() or path.is_symlink():
        path.rename(f"{path}.bak")


def _own(path: Path, given: dict[str, Any]) -> None:
    try:
        if given.get("owner"):
            shutil.chown(path, user=given["owner"])
        if given.get("group"):
            shutil.chown(path, group=given["group"])
    except LookupError as error:
        raise FailedError(f"{path}: {error}") from None


def _content(path: Path, given: dict[str, Any], downloads: Downloads) -> bytes:
    content = given.get("content")
    if not content and not given.get("source"):
        raise FailedError(f"{path}: file specified without source or content")
    if not content:
        fetched = downloads.fetch(given["source"], given.get("authentication"))
        return render(fetched.decode(), given["context"]).encode() if "context" in given else fetched
    if not isinstance(content, str):
        return json.dumps(content).encode()
    if given.get("encoding", "plain") == "base64":
        try:
            return base64.b64decode(content.strip(), validate=True)
        except binascii.Error:
            raise FailedError(f"{path}: malformed base64") from None
    return (render(content, given["context"]) if "context" in given else content).encode()


def unpack_sources(sources: dict[str, str], downloads: Downloads) -> list[str]:
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
