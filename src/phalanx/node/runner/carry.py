"""Files and directories as one stream: a line of JSON, then tar; nobody ever sees half a file."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from dataclasses import dataclass
from typing import IO, Any, Callable, Dict, Iterator, List, Tuple

# Comes first: whatever a login script prints before it is not taken for the stream.
MAGIC = b"\0phalanx-carry-1\n"
TOP = "top"
_COPY_BYTES = 1 << 20
_MOST_LISTED = 20
_LONGEST_PREAMBLE = 64 << 10

Progress = Callable[[int], None]


class CarryError(Exception):
    """It can't be carried; the text says why."""


@dataclass(frozen=True)
class Item:
    """One thing to carry: where it is, its name in the stream (TOP, or below it), its kind's mode bits and size."""

    path: str
    name: str
    mode: int
    bytes: int


@dataclass(frozen=True)
class Load:
    """What is carried. `left_out` names links that lead elsewhere, sockets and their like."""

    items: Tuple[Item, ...]
    left_out: Tuple[str, ...]

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)

    @property
    def files(self) -> int:
        return sum(stat.S_ISREG(item.mode) for item in self.items)

    def header(self) -> Dict[str, Any]:
        return {"items": len(self.items), "files": self.files, "bytes": self.bytes, "left_out": self.left_out}


def survey(path: str) -> Load:
    """Everything at this path (a link there is followed). Raises CarryError where it can't be read."""
    top = os.path.realpath(path)
    try:
        found = list(_items(top, TOP))
    except OSError as error:
        raise CarryError(f"can't read {error.filename!r}: {error.strerror}") from error
    kept = tuple(item for item in found if _is_portable(item))
    return Load(kept, tuple(item.name[len(TOP) + 1 :] for item in found if item not in set(kept)))


def send(out: IO[bytes], load: Load, progress: Progress = lambda _: None) -> None:
    """Write the stream. Raises CarryError for a file that can't be read any more, OSError when `out` breaks."""
    out.write(MAGIC + json.dumps(load.header()).encode() + b"\n")
    sent = 0
    with tarfile.open(fileobj=out, mode="w|", bufsize=_COPY_BYTES, **_FORMAT) as tar:
        for item in load.items:
            _add(tar, item)
            sent += item.bytes
            progress(sent)


def read_header(source: IO[bytes]) -> Dict[str, Any]:
    """The stream's first line, past what a login script printed. Raises CarryError when there is none."""
    before = b""
    while MAGIC not in before:
        line = source.readline()
        before += line
        if not line or len(before) > _LONGEST_PREAMBLE:
            raise CarryError("nothing came" if not before.strip() else f"something else came: {before[:200]!r}")
    return json.loads(source.readline())


def receive(source: IO[bytes], header: Dict[str, Any], target: str, progress: Progress = lambda _: None) -> None:
    """Put the stream's content at `target`: each file beside its place first, then renamed. Raises CarryError."""
    items = 0
    arrived = _Arrived(progress)
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=_COPY_BYTES, **_FORMAT) as tar:
            for member in tar:
                _place(tar, member, _destination(member, target), arrived)
                items += 1
    except tarfile.TarError as error:
        raise CarryError(f"it broke off after {items} of {header['items']} files: {error}") from error
    except OSError as error:
        raise CarryError(f"can't write {error.filename or target!r}: {error.strerror or error}") from error
    if items != header["items"]:
        raise CarryError(f"it broke off after {items} of {header['items']} files")


def holds(directory: str) -> List[str]:
    """Names in a directory, for messages; directories end with a slash, and there are not too many of them."""
    with os.scandir(directory) as found:
        names = sorted(entry.name + "/" * entry.is_dir() for entry in found if not entry.name.startswith("."))
    more = [f"… ({len(names) - _MOST_LISTED} more)"] if len(names) > _MOST_LISTED else []
    return names[:_MOST_LISTED] + more


# GNU's format keeps file names as the bytes that they are, valid UTF-8 or not.
_FORMAT: Dict[str, Any] = {"format": tarfile.GNU_FORMAT, "encoding": "utf-8", "errors": "surrogateescape"}


def _items(path: str, name: str) -> Iterator[Item]:
    found = os.lstat(path)
    regular = stat.S_ISREG(found.st_mode)
    yield Item(path, name, found.st_mode, found.st_size if regular else 0)
    if stat.S_ISDIR(found.st_mode):
        for child in sorted(os.listdir(path)):
            yield from _items(os.path.join(path, child), f"{name}/{child}")


def _is_portable(item: Item) -> bool:
    if stat.S_ISLNK(item.mode):
        return _stays_inside(item.name, os.readlink(item.path))
    return stat.S_ISREG(item.mode) or stat.S_ISDIR(item.mode)


def _stays_inside(name: str, link: str) -> bool:
    """Does a link of this name lead to something that is carried, too?"""
    leads_to = os.path.normpath(os.path.join(os.path.dirname(name), link))
    return not link.startswith("/") and (leads_to + "/").startswith(TOP + "/")


def _add(tar: tarfile.TarFile, item: Item) -> None:
    try:
        info = tar.gettarinfo(item.path, item.name)
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        if not stat.S_ISREG(item.mode):
            tar.addfile(info)
            return
        # A second name of a file that was sent already is a file of its own, too.
        info.type, info.linkname, info.size = tarfile.REGTYPE, "", item.bytes
        file = open(item.path, "rb")  # noqa: SIM115 - only opening it may fail with these words
    except OSError as error:
        raise CarryError(f"can't read {item.path!r}: {error.strerror}") from error
    with file:
        if os.fstat(file.fileno()).st_size < item.bytes:
            raise CarryError(f"{item.path!r} became shorter while it was read; try again")
        tar.addfile(info, file)


def _destination(member: tarfile.TarInfo, target: str) -> str:
    """Where a member goes. Its name comes from the other side and may be anything."""
    first, *rest = member.name.split("/")
    if first != TOP or any(part in ("", ".", "..") for part in rest):
        raise CarryError(f"refused a file named {member.name!r}")
    place = target
    for part in rest:
        if os.path.islink(place):
            raise CarryError(f"{place!r} is a symbolic link; nothing is written through it")
        place = os.path.join(place, part)
    return place


class _Arrived:
    """Counts the bytes of all files, piece by piece."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bytes = 0

    def add(self, count: int) -> None:
        self._bytes += count
        self._progress(self._bytes)


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, place: str, arrived: _Arrived) -> None:
    if member.isdir():
        os.makedirs(place, exist_ok=True)
        return
    if os.path.isdir(place) and not os.path.islink(place):
        raise CarryError(f"{place!r} is a directory; the file of that name can't take its place")
    beside = os.path.join(os.path.dirname(place), f".{os.path.basename(place)[:200]}.{os.getpid()}.part")
    try:
        if member.issym() and _stays_inside(member.name, member.linkname):
            os.symlink(member.linkname, beside)
        elif member.isreg():
            _write(tar.extractfile(member), member, beside, arrived)
        else:
            raise CarryError(f"refused {member.name!r}: neither file nor directory, or a link that leads elsewhere")
        os.replace(beside, place)
    finally:
        if os.path.lexists(beside):
            os.unlink(beside)


def _write(content: Any, member: tarfile.TarInfo, path: str, arrived: _Arrived) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        while data := content.read(_COPY_BYTES):
            arrived.add(file.write(data))
        os.fchmod(fd, member.mode & 0o777)
    os.utime(path, (member.mtime, member.mtime))
