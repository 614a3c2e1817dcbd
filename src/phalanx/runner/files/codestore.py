"""The code of jobs by content, on the shared directory: what an earlier job sent need not be sent again.

<shared>/.phalanx/code/objects/SHA256-SIZE   the content of a file; it never changes
<shared>/.phalanx/code/trees/SHA256          names of the objects of one directory, a line each; its time: the last use
<shared>/.phalanx/code/lock                  shared to read and add, exclusive to remove
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid
from phalanx.runner.files import record
from phalanx.runner.files.state import set_aside
from phalanx.runner.names import MANIFEST, WORK

if TYPE_CHECKING:
    from typing import Any, BinaryIO, Callable, Dict, Iterable, List, Sequence

    Entry = List[Any]  # [name], [name, link's target] or [name, object, mode, mtime in ns]; a directory's ends in "/"

# The file system is paid for by the byte, so the store keeps two of the largest directories that can be sent.
MOST_BYTES = 4 << 30
MOST_TREES = 64
_COPY_BYTES = 1 << 20
_BEAT_EVERY_S = 1.0
_LENGTH_BYTES = 8
_GONE = -1
_INCOMING = "incoming."
_SHA256 = "[0-9a-f]{64}"
_OBJECT = re.compile(_SHA256 + "-([0-9]{1,15})")
_TREE = re.compile(_SHA256)


def unpack(directory: str, stdin: BinaryIO, answer: Callable[[bytes], Any]) -> None:
    """Make the job's work/ from its manifest; request missing contents, which arrive on stdin.

    Raises EOFError when stdin ends too early, OSError.
    """
    with open(os.path.join(directory, MANIFEST)) as file:
        entries = json.load(file)
    store = Store(os.path.join(os.path.dirname(os.path.dirname(directory)), "code"))
    try:
        missing = store.missing(entries)
        answer(json.dumps({"send": missing}).encode() + b"\n")
        for number in missing:
            store.receive(entries[number][1], stdin)
        beat = _once_a_second(lambda: answer(b"\n"))
        store.make(entries, os.path.join(directory, WORK), beat)
        store.remember(entries)
        # Removing thousands of files on a network file system takes longer than the client waits in silence.
        store.tidy(beat)
    except BaseException:
        # Incomplete contents must not fill the disk; complete ones need not be sent again. The client may be gone.
        store.tidy()
        raise
    finally:
        store.close()
    answer(b'{"made": true}\n')


class Store:
    """The store's objects and trees; none is removed while this is open.

    Any job can write there, even one of an earlier cluster, and a power failure can cut an object short. An object
    without the SHA-256 of its name is not used, and is sent again.
    """

    def __init__(self, root: str) -> None:
        self._objects = os.path.join(root, "objects")
        self._trees = os.path.join(root, "trees")
        for place in (self._objects, self._trees):
            os.makedirs(place, exist_ok=True)
        # Readable, too: NFS (EFS) turns flock into a byte-range lock, and a shared one needs a readable file.
        self._lock = open(os.path.join(root, "lock"), "a+")  # noqa: SIM115 - closed by `close`
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        # Only a listing: a stat of each object would take milliseconds on a network file system.
        self._held = set(filter(_OBJECT.fullmatch, os.listdir(self._objects)))
        self._odd: Dict[str, str] = {}  # object → the file that arrived in its place ("": none)

    def missing(self, entries: Sequence[Entry]) -> List[int]:
        """Return the numbers of entries whose contents must be sent, each content once."""
        first: Dict[str, int] = {}
        for number, entry in enumerate(entries):
            if len(entry) == 4 and entry[1] not in self._held:
                first.setdefault(entry[1], number)
        return sorted(first.values())

    def receive(self, name: str, stdin: BinaryIO) -> None:
        """Read one content: its length, then its bytes. One that does not match its name is used only for this job."""
        length = int.from_bytes(_read(stdin, _LENGTH_BYTES), "big", signed=True)
        if length == _GONE:
            self._odd[name] = ""
            return
        beside = os.path.join(self._objects, f"{_INCOMING}{os.getpid()}.{len(self._odd)}")
        digest = hashlib.sha256()
        with open(beside, "wb") as file:
            for left in range(length, 0, -_COPY_BYTES):
                data = _read(stdin, min(left, _COPY_BYTES))
                digest.update(data)
                file.write(data)
        if name == _name_of(digest, length):
            os.rename(beside, os.path.join(self._objects, name))
            self._held.add(name)
        else:
            self._odd[name] = beside

    def make(self, entries: Sequence[Entry], work: str, beat: Callable[[], Any]) -> None:
        """Copy the entries to `work`: a job may write into its files, and no other job must see that."""
        os.makedirs(work, exist_ok=True)
        try:
            for entry in entries:
                self._make_one(entry, os.path.join(work, entry[0]))
                beat()
        except Invalid as error:
            self._set_damaged_aside(entries)
            raise OSError(f"the code store was damaged ({error}): the next submission sends what it lacks") from error
        for path in filter(None, self._odd.values()):
            os.unlink(path)

    def _set_damaged_aside(self, entries: Sequence[Entry]) -> None:
        for name in {entry[1] for entry in entries if len(entry) == 4} & self._held:
            try:
                self._copy(name, os.devnull, os.O_WRONLY)
            except Invalid:
                set_aside(self._objects, name)

    def _copy(self, name: str, target: str, flags: int, mode: int = 0o600) -> None:
        """Copy an object; the umask applies to `mode`. Raises Invalid for one that does not match its name."""
        source = self._odd.get(name) or os.path.join(self._objects, name)
        try:
            fd = record.open_to_read(source)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Invalid(f"{name} is gone") from error
        digest, length = hashlib.sha256(), 0
        with open(fd, "rb", buffering=0) as old, open(os.open(target, flags, mode), "wb") as new:
            while data := old.read(_COPY_BYTES):
                digest.update(data)
                length += len(data)
                new.write(data)
        if name not in self._odd and name != _name_of(digest, length):
            raise Invalid(f"{name} does not match its name")

    def _make_one(self, entry: Entry, path: str) -> None:
        if len(entry) == 1:
            os.mkdir(path)
        elif len(entry) == 2:
            os.symlink(entry[1], path)
        else:
            _, name, mode, mtime_ns = entry
            if self._odd.get(name) != "":
                self._copy(name, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                os.utime(path, ns=(mtime_ns, mtime_ns))

    def remember(self, entries: Sequence[Entry]) -> None:
        """Record that these objects were used now."""
        objects = sorted({entry[1] for entry in entries if len(entry) == 4} & self._held)
        text = "\n".join(objects)
        path = os.path.join(self._trees, hashlib.sha256(text.encode()).hexdigest())
        with open(f"{path}.{os.getpid()}", "w") as file:
            file.write(text)
        os.replace(f"{path}.{os.getpid()}", path)

    def tidy(self, beat: Callable[[], Any] = lambda: None) -> None:
        """Remove the least recently used contents above MOST_BYTES, unless another job reads from the store."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # Another job holds it, or the server can't upgrade a shared lock: no reason to refuse a job.
            return
        found = os.listdir(self._objects)
        self._remove(self._objects, (name for name in found if name.startswith(_INCOMING)), beat)
        trees = sorted(filter(_TREE.fullmatch, os.listdir(self._trees)), key=self._used_at, reverse=True)
        self._remove(self._trees, trees[MOST_TREES:], beat)
        held = set(filter(_OBJECT.fullmatch, found))
        if _bytes_of(held) > MOST_BYTES:
            self._shrink(held, trees[:MOST_TREES], beat)

    def close(self) -> None:
        self._lock.close()

    def _shrink(self, held: Iterable[str], trees: Sequence[str], beat: Callable[[], Any]) -> None:
        kept: set[str] = set()
        for number, tree in enumerate(trees):
            more = kept | self._objects_of(tree)
            # The newest stays, whatever its size: the next job will be similar.
            if number and _bytes_of(more) > MOST_BYTES:
                self._remove(self._trees, trees[number:], beat)
                break
            kept = more
        self._remove(self._objects, set(held) - kept, beat)

    def _objects_of(self, tree: str) -> set[str]:
        try:
            names = record.read_text(os.path.join(self._trees, tree)).splitlines()
        except (Invalid, FileNotFoundError):
            return set()
        return set(filter(_OBJECT.fullmatch, names))

    def _used_at(self, tree: str) -> float:
        return os.lstat(os.path.join(self._trees, tree)).st_mtime

    @staticmethod
    def _remove(place: str, names: Iterable[str], beat: Callable[[], Any]) -> None:
        for name in names:
            try:
                os.unlink(os.path.join(place, name))
            except OSError:
                pass  # a directory that a job created: it only takes room
            beat()


def _once_a_second(beat: Callable[[], Any]) -> Callable[[], None]:
    """Return a function that calls `beat` at most once a second, however often it is called."""
    beat_at = time.monotonic() + _BEAT_EVERY_S

    def call() -> None:
        nonlocal beat_at
        if time.monotonic() > beat_at:
            beat()
            beat_at = time.monotonic() + _BEAT_EVERY_S

    return call


def _bytes_of(objects: Iterable[str]) -> int:
    return sum(int(name.partition("-")[2]) for name in objects)


def _read(stdin: BinaryIO, count: int) -> bytes:
    data = stdin.read(count)
    if len(data) < count:
        raise EOFError("the code ended too early")
    return data


def _name_of(digest: hashlib._Hash, length: int) -> str:
    return f"{digest.hexdigest()}-{length}"
