"""Files and directories as one stream: a line of JSON, a list, then tar. A reader never sees half a file."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import tarfile
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, Any, Dict, FrozenSet, List, Optional, Tuple, Union

from phalanx import guest_file
from phalanx.node.validate import Invalid, parse
from phalanx.objects import trees
from phalanx.runner.files import begun, holes, unchanged
from phalanx.runner.files.arriving import TOP, Arrived, CarryError, Part, Places, Progress, shown

# The first bytes of the stream: what a login script prints before them is skipped.
MAGIC = b"\0phalanx-carry-1\n"
# The last file of the stream: what could no longer be read.
_UNREAD = "unread"
# Follows a file that broke off, and was padded: it is not to be kept.
_TORN = "torn"
_COPY_BYTES = 1 << 20
_MOST_LISTED = 20
_LONGEST_PREAMBLE = 64 << 10
# The header lists all links that were left out.
_LONGEST_HEADER = 16 << 20
# Linux takes no longer path (PATH_MAX).
_LONGEST_NAME = 4096
_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_KINDS = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE)
_KINDS_BY_MODE = tuple(zip((stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK), _KINDS))  # noqa: B905 (Python 3.9)
# In the header: whether a list of the files follows.
LISTED = "listed"


@dataclass(frozen=True)
class Item:
    """A file, directory or link to copy: its path, name in the stream (TOP, or below it), mode, size, mtime, ctime.

    `pieces` is where a file with holes has content; None for all others. The receiver has what is before `offset`.
    """

    path: str
    name: str
    mode: int
    bytes: int
    changed_ns: int = 0
    placed_ns: int = 0
    pieces: Optional[holes.Pieces] = None
    offset: int = 0

    @property
    def sent_bytes(self) -> int:
        """How many bytes are sent for it: of a file with holes, its pieces and their places."""
        return self.bytes - self.offset if self.pieces is None else holes.sent_bytes(self.pieces, self.bytes)


@dataclass(frozen=True)
class Load:
    """Everything to copy. `left_out` names links that lead elsewhere.

    `unread` names what can't be read, and what is no file, with the reasons.
    """

    items: Tuple[Item, ...]
    left_out: Tuple[str, ...]
    unread: Tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """How many bytes are to be sent."""
        return sum(item.sent_bytes for item in self.items)

    @property
    def files(self) -> int:
        return sum(stat.S_ISREG(item.mode) for item in self.items)

    def header(self) -> Dict[str, Any]:
        counts = {"items": len(self.items), "files": self.files, "bytes": self.bytes}
        return {
            **counts,
            "left_out": self.left_out,
            "unread": self.unread,
            LISTED: len(self.items) <= unchanged.MOST_ITEMS,
        }

    def without(self, numbers: FrozenSet[int], offsets: Optional[Dict[int, int]] = None) -> Load:
        """Return what is left to send if the receiver has the items with these numbers, and others up to `offsets`."""
        begun = offsets or {}
        items = (replace(item, offset=begun.get(number, 0)) for number, item in enumerate(self.items))
        return replace(self, items=tuple(item for number, item in enumerate(items) if number not in numbers))


def survey(path: str) -> Load:
    """Return everything at this path (a link there is followed). Raises CarryError if nothing there can be copied."""
    kept: List[Item] = []
    left_out: List[str] = []
    unread: List[str] = []
    # Without recursion, as directories may be nested deeper than calls.
    waiting = [(path, TOP)]
    while waiting:
        here, name = waiting.pop()
        try:
            item, children, is_portable = guest_file.answer(here, _look, here, name)
        except OSError as error:
            if name == TOP or error.errno == errno.ETIMEDOUT:
                raise CarryError(f"can't read {shown(here)}: {error.strerror}") from error
            unread.append(_unread(name, error))
            continue
        if is_portable:
            kept.append(item)
            waiting += [(os.path.join(item.path, child), f"{name}/{child}") for child in children]
        elif name == TOP:
            raise CarryError(f"{shown(here)} is neither a file nor a directory")
        elif stat.S_ISLNK(item.mode):
            left_out.append(_below(name))
        else:
            unread.append(f"{_below(name)}: {trees.NO_FILE}")
    return Load(tuple(kept), tuple(left_out), tuple(unread))


def offer(out: IO[bytes], load: Load) -> None:
    """Write the stream's header, and the list of its files. Raises OSError when `out` breaks."""
    say(out, load.header())
    if load.header()[LISTED]:
        unchanged.write_list(out, load.items)


def say(out: IO[bytes], answer: Any) -> None:
    """Write a line of JSON that `read_header` finds. Raises OSError when `out` breaks."""
    out.write(MAGIC + json.dumps(answer).encode() + b"\n")
    out.flush()


def known(source: IO[bytes], header: Dict[str, Any], target: str) -> unchanged.Known:
    """Read the list that follows the header, and return what is at `target` already. Raises CarryError."""
    if not header.get(LISTED):
        return unchanged.NOTHING
    items = _announced(header, "items")
    try:
        return unchanged.compare(source, items, target, TOP)
    except Invalid as error:
        raise CarryError(f"its list of files {error}") from error


def left(source: IO[bytes], load: Load) -> Load:
    """Return what the receiver lacks, by its answer to `offer`. Raises CarryError."""
    answer = read_header(source)
    try:
        same = unchanged.read_answer(answer, load.items)
    except Invalid as error:
        raise CarryError(str(answer.get("error") or f"the other end {error}")) from error
    offsets = {}
    for number, (count, digest) in begun.read_answer(answer, len(load.items)).items():
        item = load.items[number]
        if item.pieces is None and count <= item.bytes and _begins_so(item, count, digest):
            offsets[number] = count
    return load.without(same, offsets)


def _begins_so(item: Item, count: int, digest: str) -> bool:
    try:
        return begun.begins_so(item.path, count, digest)
    except OSError:  # `send` says why
        return False


def send(out: IO[bytes], load: Load, progress: Progress = lambda _: None) -> List[str]:
    """Write the files; return what could no longer be read, with the reasons.

    Raises OSError when `out` breaks, CarryError for a file whose file system does not answer.
    """
    sent, unread, torn = 0, [], []
    with tarfile.open(fileobj=out, mode="w|", bufsize=_COPY_BYTES, **_FORMAT) as tar:
        for item in load.items:
            reason, is_torn = _add(tar, item)
            if is_torn:
                _tell(tar, _TORN, [reason])
                torn.append(reason)
            elif reason:
                unread.append(reason)
            sent += item.sent_bytes
            progress(sent)
        _tell(tar, _UNREAD, unread)
    return torn + unread


def read_header(source: IO[bytes]) -> Dict[str, Any]:
    """Return the stream's header, past what a login script printed. Raises CarryError when there is none."""
    before = b""
    while MAGIC not in before:
        line = source.readline(_LONGEST_PREAMBLE)
        before += line
        if not line or len(before) > _LONGEST_PREAMBLE:
            raise CarryError("nothing came" if not before.strip() else f"something else came: {before[:200]!r}")
    try:
        header = parse(source.readline(_LONGEST_HEADER))
    except Invalid:
        header = None
    if not isinstance(header, dict):
        raise CarryError("its header is not a JSON object")
    return header


def receive(
    source: IO[bytes],
    header: Dict[str, Any],
    target: str,
    progress: Progress = lambda _: None,
    known: unchanged.Known = unchanged.NOTHING,
) -> List[str]:
    """Write the stream's content to `target`, each file under a temporary name and then renamed. Raises CarryError.

    Return what the sender could no longer read. What is `known` does not come. The sender may be hostile: nothing is
    written outside `target`, or in excess of what the header announces.
    """
    items, count = _announced(header, "items") - len(known.same), _announced(header, "bytes") - known.bytes
    arrived = Arrived(items, count, progress)
    places = Places(target)
    part = Part()
    try:
        _require_room(count - sum(one.bytes for one in known.begun.values()), os.path.dirname(target))
        with tarfile.open(fileobj=source, mode="r|", bufsize=_COPY_BYTES, tarinfo=_Member, **_FORMAT) as tar:
            for member in tar:
                if member.name == _UNREAD and member.isreg():
                    part.keep()
                    arrived.leave_out(_told(tar, member))
                    continue
                if member.name == _TORN and part.place:
                    part.remove()
                    arrived.torn += _told(tar, member)[:1]
                    continue
                part.keep()
                arrived.begin(member)
                if member.name in known.twins or member.name.rpartition("/")[0] in known.twins:
                    arrived.torn.append(f"{_below(member.name)}: a name that differs in case only is taken")
                elif member.isdir():
                    places.make_directory(member)
                else:
                    _write(tar, member, part.begin(places.of(member), known, member.gname), target, arrived)
    except (tarfile.TarError, RecursionError) as error:
        raise CarryError(f"the stream ended after {arrived.progress}: {error}{part.leave()}") from error
    except KeyboardInterrupt:
        part.leave()
        raise
    except OSError as error:
        raise CarryError(f"can't write {shown(error.filename or target)}: {error.strerror or error}") from error
    finally:
        part.remove()
        with suppress(OSError):
            known.put_back()
    arrived.end()
    return arrived.torn + arrived.unread


def names_in(directory: str) -> List[str]:
    """Return the first names in a directory, for messages; directories end with a slash."""
    with os.scandir(directory) as found:
        names = sorted(entry.name + "/" * entry.is_dir() for entry in found if not entry.name.startswith("."))
    more = [f"… ({len(names) - _MOST_LISTED} more)"] if len(names) > _MOST_LISTED else []
    return names[:_MOST_LISTED] + more


# GNU's format keeps the bytes of file names, valid UTF-8 or not.
_FORMAT: Dict[str, Any] = {"format": tarfile.GNU_FORMAT, "encoding": "utf-8", "errors": "surrogateescape"}


class _Member(tarfile.TarInfo):
    """A header as `send` writes it: tarfile itself accepts names of any length, and kinds that are never sent."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> tarfile.TarInfo:
        member = super().frombuf(buf, encoding, errors)
        is_name = member.type in _NAMES
        if not (is_name or member.type in _KINDS) or member.size < 0 or (is_name and member.size > _LONGEST_NAME):
            raise CarryError(f"refused {shown(member.name)}: neither a file, a directory nor a link")
        return member


def _look(path: str, name: str) -> Tuple[Item, List[str], bool]:
    """Return what is at a path, the names in a directory, last first, and whether it can be copied. Raises OSError."""
    path = os.path.realpath(path) if name == TOP else path
    found = os.lstat(path)
    regular = stat.S_ISREG(found.st_mode)
    if regular and not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    children = sorted(os.listdir(path), reverse=True) if stat.S_ISDIR(found.st_mode) else []
    pieces = holes.pieces(path, found) if regular else None
    item = Item(path, name, found.st_mode, regular * found.st_size, found.st_mtime_ns, found.st_ctime_ns, pieces)
    return item, children, _is_portable(item)


def _below(name: str) -> str:
    """Return an item's name as its path below the top."""
    return name[len(TOP) + 1 :]


def _unread(name: str, error: OSError) -> str:
    return f"{_below(name) or name}: {error.strerror}"


def _told(tar: tarfile.TarFile, member: tarfile.TarInfo) -> List[str]:
    """Return the names that the sender could not read. Raises CarryError for anything else."""
    content = tar.extractfile(member)
    try:
        names = parse(content.read(_LONGEST_HEADER)) if content else None
    except Invalid:
        names = None
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise CarryError("what could not be read is not a list of names")
    return names


def _is_portable(item: Item) -> bool:
    if stat.S_ISLNK(item.mode):
        return _stays_inside(item.name, os.readlink(item.path))
    return stat.S_ISREG(item.mode) or stat.S_ISDIR(item.mode)


def _stays_inside(name: str, link: str) -> bool:
    """Return whether a link of this name leads to something that is copied, too.

    It may go up first, through real directories, and then down. A `..` after a name is refused: where the name is a
    link itself, `..` leads up from the link's target.
    """
    parts = [part for part in link.split("/") if part not in ("", ".")]
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    directories_above = name.count("/") - 1
    return not link.startswith("/") and up <= directories_above and ".." not in parts[up:]


def _add(tar: tarfile.TarFile, item: Item) -> Tuple[str, bool]:
    """Add a file, directory or link.

    Return the reason why it can no longer be read, with its name, or ""; and whether it was added, but is not whole.
    """
    try:
        # Something else may have replaced the file: follow no link.
        content = guest_file.Content(item.path, os.O_NOFOLLOW, item.offset) if stat.S_ISREG(item.mode) else None
        info = member(item.path, item.name) if content is None else _header(item.path, item.name, content.status)
    except OSError as error:
        if error.errno == errno.ETIMEDOUT:
            raise _unanswered(error) from error
        return _unread(item.name, error), False
    if content is None:
        tar.addfile(info)
        return "", False
    # It may be longer or shorter by now: what the header announced is sent at most, with the time that was listed.
    info.uname = unchanged.time_text(item.changed_ns)
    source: Union[guest_file.Content, holes.Sent]
    if item.pieces is None:
        info.size, source = max(0, min(item.bytes, content.size) - item.offset), content
        info.gname = holes.SPARSE if holes.lacks_blocks(content.status) else ""
        info.gname = f"{begun.FROM}{item.offset}" if item.offset else info.gname
    else:
        info.size, source = item.sent_bytes, holes.Sent(content, item.pieces, item.bytes)
        info.gname = holes.PIECES
    padded = guest_file.Padded(source)
    try:
        tar.addfile(info, padded)
    except OSError as error:
        # Not that of the stream that it is written to.
        if error is padded.lost:
            raise _unanswered(error) from error
        raise
    return (_unread(item.name, padded.lost), True) if padded.lost else ("", False)


def _tell(tar: tarfile.TarFile, name: str, texts: List[str]) -> None:
    told = json.dumps(texts).encode()
    info = tarfile.TarInfo(name)
    info.size = len(told)
    tar.addfile(info, io.BytesIO(told))


def member(path: str, name: str) -> tarfile.TarInfo:
    """Return the header of a file, directory or link, whose owner nobody learns. Raises OSError."""
    return _header(path, name, *guest_file.answer(path, _status_and_link, path))


def _header(path: str, name: str, status: os.stat_result, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime, info.linkname = status.st_mode, status.st_mtime, link
    # A hard link to a file that was sent already is sent as a file of its own.
    info.type = next((kind for is_kind, kind in _KINDS_BY_MODE if is_kind(status.st_mode)), b"")
    if not info.type:
        raise FileNotFoundError(errno.ENOENT, "something else took its place", path)
    return info


def _status_and_link(path: str) -> Tuple[os.stat_result, str]:
    status = os.lstat(path)
    return status, os.readlink(path) if stat.S_ISLNK(status.st_mode) else ""


def _unanswered(error: OSError) -> CarryError:
    return CarryError(f"can't read {shown(error.filename)}: {error.strerror}")


def _announced(header: Dict[str, Any], name: str) -> int:
    value = header.get(name)
    if type(value) is not int or value < 0:
        raise CarryError(f"its header does not give the number of {name}")
    return value


def _require_room(count: int, directory: str) -> None:
    disk = os.statvfs(directory)
    if count > disk.f_bavail * disk.f_frsize:
        raise CarryError(f"it is {count} bytes; {disk.f_bavail * disk.f_frsize} are free in {directory}")


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, place: str, target: str, arrived: Arrived) -> None:
    if member.isreg():
        _write_file(tar.extractfile(member), member, place, arrived)
    elif _stays_inside(member.name, member.linkname) and _leads_below(target, place, member.linkname):
        os.symlink(member.linkname, place)
    else:
        raise CarryError(f"refused {shown(member.name)}: a link that leads elsewhere")


def _leads_below(target: str, place: str, link: str) -> bool:
    """Return whether a link stays below the target, also through links that were there before."""
    end = os.path.realpath(os.path.join(os.path.dirname(place), link))
    return (end + "/").startswith(os.path.realpath(target) + "/")


def _write_file(content: Any, member: tarfile.TarInfo, path: str, arrived: Arrived) -> None:
    is_rest = member.gname.startswith(begun.FROM)
    how = os.O_APPEND | os.O_NOFOLLOW if is_rest else os.O_CREAT | os.O_EXCL
    try:
        fd = os.open(path, os.O_WRONLY | how, 0o600)
    except FileNotFoundError as error:
        raise CarryError(f"the rest of {shown(member.name)} came, which was not here") from error
    with os.fdopen(fd, "ab" if is_rest else "wb") as file:
        if is_rest and member.gname != f"{begun.FROM}{os.fstat(fd).st_size}":
            raise CarryError(f"what was here of {shown(member.name)} has changed")
        try:
            holes.write(content, member.gname, member.size, file, arrived.add)
        except Invalid as error:
            raise CarryError(f"the pieces of {shown(member.name)} {error}") from error
        os.fchmod(fd, member.mode & 0o777)
    unchanged.set_time(path, member.uname, member.mtime)
