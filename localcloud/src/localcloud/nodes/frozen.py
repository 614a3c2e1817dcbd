"""A shared directory that stops answering: a file system that answers nothing lies over it for a while (FUSE).

As on a hard NFS mount whose server is away, every use of a path waits, and only SIGKILL ends the wait. Files that are
open already stay usable. In the end, the answer to every request that waited is "stale": the kernel then looks the path
up again, and finds the real directory.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import struct
from collections.abc import Iterator

from localcloud.nodes import kernel
from localcloud.nodes.machine import NodeError, Site
from localcloud.nodes.programs import EFS_ROOT

_DEVICE = "/dev/fuse"
_REQUEST_BYTES = 1 << 17
# Of the protocol (linux/fuse.h): a request's length, opcode and number; an answer's length, error and number.
_REQUEST, _ANSWER = struct.Struct("=IIQ"), struct.Struct("=IiQ")
_BODY_AT = 40
_VERSION = struct.Struct("=III")
_UNANSWERED = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET
# What waits for a lock of the frozen directory sends its request only when the one before has been answered.
_QUIET_MS = 3000


def freeze(site: Site, pid: int, pidfd: int, for_s: float) -> int:
    """Freeze the shared directories that a node has mounted; return the pid of the process that ends it, or on SIGTERM.

    Raises NodeError where this machine's users may not make file systems, or the node has mounted nothing.
    """
    points = list(_mount_points(site, pid))
    if not points:
        raise NodeError("the node has mounted no shared directory")
    said_r, said_w = os.pipe()
    helper = os.fork()
    if helper == 0:
        _run(points, pidfd, for_s, said_w)
    os.close(said_w)
    with os.fdopen(said_r) as said:
        problem = said.read()
    if problem:
        os.waitpid(helper, 0)
        raise NodeError(f"its shared directory can't be frozen: {problem}")
    return helper


def _mount_points(site: Site, pid: int) -> Iterator[str]:
    """Yield where a node has mounted file systems, beside the directory from which mount.efs takes them."""
    for _mount, _parent, _device, root, point, *_more in kernel.mounts(pid):
        if f"/{site.file_systems.name}/fs-" in root and not point.startswith(EFS_ROOT):
            yield point


def _run(points: list[str], pidfd: int, for_s: float, said_w: int) -> None:
    """Freeze, wait until the time is over or the node has ended, and thaw. Never returns."""
    try:
        kernel.die_with_parent()
        devices = [os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC) for _ in points]
        kernel.setns(pidfd, kernel.CLONE_NEWNS)
        for point, device in zip(points, devices, strict=True):
            _lay_over(point, device)
        ends = [pidfd, _on_sigterm()]
        os.close(said_w)
        _wait(ends, round(for_s * 1000))
        for point in points:
            kernel.unmount(point)
        _thaw(devices)
    except OSError as problem:
        os.write(said_w, str(problem).encode())
    finally:
        os._exit(0)


def _lay_over(point: str, device: int) -> None:
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    kernel.mount("frozen", point, "fuse", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    _length, _opcode, number = _REQUEST.unpack_from(request := os.read(device, _REQUEST_BYTES))
    # Its version, and no features. What comes after this stays in the kernel, where SIGKILL can end the wait for it.
    body = request[_BODY_AT : _BODY_AT + _VERSION.size] + bytes(52)
    _answer(device, number, 0, body)


def _on_sigterm() -> int:
    """Return the end of a pipe from which one can read after a SIGTERM."""
    woken_r, woken_w = os.pipe()
    os.set_blocking(woken_w, False)
    signal.set_wakeup_fd(woken_w)
    signal.signal(signal.SIGTERM, lambda *_: None)
    return woken_r


def _wait(ends: list[int], timeout_ms: int) -> None:
    poll = select.poll()
    for end in ends:
        poll.register(end, select.POLLIN)
    poll.poll(timeout_ms)


def _thaw(devices: list[int]) -> None:
    poll = select.poll()
    for device in devices:
        poll.register(device, select.POLLIN)
    while ready := poll.poll(_QUIET_MS):
        for device, _events in ready:
            _length, opcode, number = _REQUEST.unpack_from(os.read(device, _REQUEST_BYTES))
            if opcode not in _UNANSWERED:
                _answer(device, number, -errno.ESTALE)


def _answer(device: int, number: int, error: int, body: bytes = b"") -> None:
    os.write(device, _ANSWER.pack(_ANSWER.size + len(body), error, number) + body)
