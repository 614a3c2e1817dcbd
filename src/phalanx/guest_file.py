"""Reads files of a repository, whose author is not trusted with this machine: regular files, none too large.

Nor is it trusted to answer: its directory may be on a server that is away, whose readers no Ctrl-C reaches. What is
sent from there, or from anywhere else, is read with the same deadline.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import pickle
import re
import select
import signal
import stat
import threading
import time
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import IO, Any, NoReturn, TypeVar

    Result = TypeVar("Result")

_SILENT_S = 30.0
_BLOCK_BYTES = 1 << 20
# A character of a path, as the kernel writes it in a table of mounts.
_CODE = re.compile(rb"\\([0-7]{3})")


def _silent(path: str) -> OSError:
    return OSError(errno.ETIMEDOUT, f"its file system does not answer within {_SILENT_S:g} s", path)


def shown(name: object) -> str:
    """Return a name or path of a repository for a message: on one line, whatever characters it has."""
    return text if (text := str(name)).isprintable() else repr(text)


def answer(path: Path | str, call: Callable[..., Result], *arguments: object) -> Result:
    """Return `call(*arguments)`, which uses this path. Raises OSError if it takes longer than 30 s."""
    return answering(path, lambda _: call(*arguments))


def answering(path: Path | str, call: Callable[[Callable[[str], object]], Result]) -> Result:
    """Return `call(name)`, which names each path before it reads that; the first is `path`.

    Raises OSError if a path takes longer than 30 s. What reads it is left behind: a thread; or, as a process that waits
    for FUSE can't even be killed, a process, so that this one can end. `call` must only return something then.
    """
    at = [os.fspath(path)]
    if _is_served_by_a_process(at[0]):
        return _in_a_process(at, call)
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    worker.calls.put(partial(call, at.append))
    while True:
        before = len(at)
        try:
            result, error = worker.results.get(timeout=_SILENT_S)
        except Empty:
            if len(at) == before:
                raise _silent(at[-1]) from None
            continue
        _idle.append(worker)
        if error is not None:
            raise error
        return result


class _Worker:
    """A thread that makes one call after another, of which each may be the last."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self.results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self.results.put(_outcome(self.calls.get()))


_idle: list[_Worker] = []
os.register_at_fork(after_in_child=_idle.clear)


def _outcome(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:
        return None, error


def _is_served_by_a_process(path: str) -> bool:
    """Whether a FUSE file system is mounted at this path, above or below it."""
    here = _as_prefix(os.path.abspath(path))  # noqa: PTH100 - resolve() would look up links
    return any(here.startswith(mount) or mount.startswith(here) for mount in _fuse_mounts())


def _as_prefix(directory: str) -> str:
    return directory.rstrip("/") + "/"


def _fuse_mounts() -> list[str]:
    """Return where FUSE is mounted, each with a slash at the end; read again after a second."""
    global _known_mounts
    read_s, mounts = _known_mounts
    if time.monotonic() - read_s > 1:
        read_s, mounts = time.monotonic(), []
        # As bytes: another user's mount may be named with what text takes for the end of a line, or a space.
        with suppress(OSError), open("/proc/self/mountinfo", "rb") as lines:
            table = (line.split(b" ") for line in lines)
            found = [fields[4] for fields in table if fields[fields.index(b"-", 6) + 1].startswith(b"fuse")]
            mounts = [_as_prefix(os.fsdecode(_CODE.sub(lambda code: bytes([int(code[1], 8)]), name))) for name in found]
        # At once: other threads read it meanwhile.
        _known_mounts = read_s, mounts
    return mounts


_known_mounts: tuple[float, list[str]] = (float("-inf"), [])
_children: list[int] = []


def _reap() -> None:
    """Wait for those of the processes that have ended. One that hangs can't be waited for."""
    for pid in list(_children):
        # Another thread may have been faster.
        with suppress(ChildProcessError, ValueError):
            if os.waitpid(pid, os.WNOHANG)[0]:
                _children.remove(pid)


def _in_a_process(at: list[str], call: Callable[[Callable[[str], object]], Result]) -> Result:
    _reap()
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        _serve(theirs, call)
    os.close(theirs)
    is_done = False
    try:
        with open(ours, "rb", buffering=0) as pipe:
            poll = select.poll()
            poll.register(pipe, select.POLLIN)
            while True:
                if not poll.poll(_SILENT_S * 1000):
                    raise _silent(at[-1])
                size = int.from_bytes(_exactly(pipe, 8), "big")
                name, result, error = pickle.loads(_exactly(pipe, size))
                is_done = name is None
                if is_done:
                    break
                at.append(name)
    finally:
        # Ctrl-C comes here, too.
        if not is_done:
            os.kill(pid, signal.SIGKILL)
        _children.append(pid)
        _reap()
    if error is not None:
        raise error
    return result


class _Pickler(pickle.Pickler):
    """Pickles errors whose constructors take other arguments than those that they keep, too."""

    def reducer_override(self, value: object) -> Any:
        if not isinstance(value, BaseException) or isinstance(value, OSError):
            return NotImplemented
        return type(value).__new__, (type(value), *value.args), vars(value)


def _packed(told: tuple[object, ...]) -> bytes:
    try:
        packed = io.BytesIO()
        _Pickler(packed).dump(told)
        return packed.getvalue()
    except Exception as error:
        return pickle.dumps((None, None, TypeError(f"it can't leave the process that read it: {error}")))


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = pipe.read(size - len(found))
        if not piece:
            raise OSError(errno.EIO, "the process that reads it has ended")
        found += piece
    return found


def _serve(out: int, call: Callable[[Callable[[str], object]], object]) -> NoReturn:
    """Make a call in a process of its own, which holds nothing open of the one that started it."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.closerange(3, out)
        os.closerange(out + 1, os.sysconf("SC_OPEN_MAX"))
        # Objects whose descriptors were just closed must not close those that take their numbers.
        gc.freeze()

        def say(*told: object) -> None:
            packed = _packed(told)
            message = len(packed).to_bytes(8, "big") + packed
            while message:
                message = message[os.write(out, message) :]

        say(None, *_outcome(partial(call, lambda name: say(name, None, None))))
    finally:
        os._exit(0)


class Content:
    """A file's content, each MiB of which is read within 30 s. Methods raise OSError with its path.

    The file is kept open, so that the content is that of one file, whatever takes its place. On FUSE, where another
    process reads it, each MiB opens it again; ESTALE if another file has taken its place.
    """

    def __init__(self, path: str, flags: int = 0, offset: int = 0) -> None:
        """Read the first block, which is often all; `flags` are more of open(2)."""
        self.path, self._offset = path, offset
        # O_NONBLOCK: opening a FIFO would wait for a writer.
        self._flags = flags | os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        self._descriptor = -1
        self._identity: tuple[int, int] | None = None
        self._ahead = b""
        self._ahead = self._block(_BLOCK_BYTES)

    def __del__(self) -> None:
        # A thread that was left behind refers to this until its call returns.
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def read(self, size: int = -1) -> bytes:
        """Return as many bytes, or all; fewer only at the end of the file."""
        found = [self._ahead if size < 0 else self._ahead[:size]]
        self._ahead = self._ahead[len(found[0]) :]
        left = size - len(found[0])
        while self._offset < self.size and (size < 0 or left > 0):
            found.append(self._block(_BLOCK_BYTES if size < 0 else min(left, _BLOCK_BYTES)))
            left -= len(found[-1])
            if not found[-1]:
                break
        return b"".join(found)

    def seek(self, offset: int) -> None:
        """Go on reading at this byte."""
        self._ahead, self._offset = b"", offset

    def _block(self, size: int) -> bytes:
        try:
            status, block = answer(self.path, self._read_at, self._offset, size)
        except OSError as error:
            error.filename = error.filename or self.path
            raise
        if self._identity is None:
            self._identity, self.status, self.size = (status.st_dev, status.st_ino), status, status.st_size
        elif self._identity != (status.st_dev, status.st_ino):
            raise OSError(errno.ESTALE, "another file took its place while it was read", self.path)
        self._offset += len(block)
        return block

    def _read_at(self, offset: int, size: int) -> tuple[os.stat_result, bytes]:
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, self._flags)
        return os.fstat(self._descriptor), os.pread(self._descriptor, size, offset)


class Padded(io.RawIOBase):
    """A file that is sent after its length: as many bytes, zeros for those that it (a `Content`) no longer has.

    `lost` is the reason then, or None. OSError is raised only if its file system does not answer.
    """

    def __init__(self, content: Any) -> None:
        self._content = content
        self.lost: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        """Return exactly as many bytes."""
        data = b""
        if self.lost is None:
            try:
                data = self._content.read(size)
            except OSError as error:
                self.lost = error
                if error.errno == errno.ETIMEDOUT:
                    raise
            else:
                if len(data) < size:
                    self.lost = OSError(errno.ESTALE, "it became shorter while it was read", self._content.path)
        return data.ljust(size, b"\0")

    @property
    def failure(self) -> OSError | None:
        """What `lost` is unless the file was merely removed, replaced or cut."""
        return None if self.lost is None or self.lost.errno in (errno.ENOENT, errno.ESTALE) else self.lost


def read(path: Path, limit_bytes: int, within: Path | None = None) -> bytes:
    """Return the content of a regular file. Raises OSError, whose `strerror` says what is wrong with any other.

    `within`: the file must be in this directory, links resolved, and not in a `.git`, whose settings may have secrets.
    """
    return answering(path, lambda _: _read(path, limit_bytes, within))


def _read(path: Path, limit_bytes: int, within: Path | None) -> bytes:
    if within is not None:
        _require_within(path, within)
    # O_NONBLOCK: opening a FIFO would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise _too_large(path, limit_bytes)
    return content


def _too_large(path: Path, limit_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {limit_bytes >> 10} KiB", str(path))


def read_named(path: Path, limit_bytes: int) -> bytes:
    """Return the content of a file that the user names; one of a repository must not lead out of it.

    A repository is where the nearest `.git` is, or else the present directory. A file elsewhere may be a pipe (`<(…)`).
    Raises OSError.
    """
    above = type(path)(os.path.abspath(path)).parents  # noqa: PTH100 - resolve() would follow the link
    of_git = (one for one in above if answer(one, os.path.lexists, one / ".git"))
    top = next(of_git, None) or next((one for one in above if one == type(path).cwd()), None)
    if top is not None and top != above[-1]:
        return read(path, limit_bytes, within=top)
    with path.open("rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise _too_large(path, limit_bytes)
    return content


def leads_out(path: str, directory: str) -> bool:
    """Whether a path is outside a directory, links resolved."""
    found, top = os.path.realpath(path), os.path.realpath(directory)
    return os.path.commonpath((found, top)) != top


def _require_within(path: Path, directory: Path) -> None:
    if leads_out(str(path), str(directory)):
        raise OSError(errno.EPERM, f"it leads out of {directory}", str(path))
    if ".git" in path.resolve().relative_to(directory.resolve()).parts:
        raise OSError(errno.EPERM, "it is git's own", str(path))
