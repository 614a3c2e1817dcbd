"""A file system (FUSE) with one file, which answers all requests but one, as a server does that went away meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

_DEVICE = "/dev/fuse"
_REQUEST, _ANSWER = struct.Struct("=IIQQ"), struct.Struct("=IiQ")
_BODY_AT = 40
# Of the protocol (linux/fuse.h): numbers of requests, and what has no answer or shall have none.
LOOKUP, _GETATTR, _OPEN, READ, CLOSE, _INIT, READ_DIRECTORY = 1, 3, (14, 27), 15, 25, 26, 28
_UNANSWERED = (2, 36, 42)
_FILE, _VALID_S = 2, 3600
_NAME = b"file"


@contextlib.contextmanager
def a_hanging_file_system(directory: Path, silent: int, size: int = 0) -> Iterator[threading.Event]:
    """Yield what is set once somebody sends a request of the kind `silent`, and hangs until the end of this.

    `size` is the file's.
    """
    if os.geteuid() or not os.access(_DEVICE, os.R_OK | os.W_OK):
        pytest.skip("only root mounts file systems, with /dev/fuse")
    directory.mkdir()
    device = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    stop_r, stop_w = os.pipe()
    hangs = threading.Event()
    server = threading.Thread(target=_serve, args=(device, stop_r, silent, hangs, size))
    mount = ["mount", "-i", "-t", "fuse", "-o", options, "hanging", str(directory)]
    subprocess.run(mount, pass_fds=[device], check=True, timeout=60)
    server.start()
    try:
        yield hangs
    finally:
        os.close(stop_w)
        server.join(60)
        os.close(stop_r)
        # The kernel ends all that waits for an answer.
        os.close(device)
        subprocess.run(["umount", "-l", str(directory)], check=True, timeout=60)


def _serve(device: int, stop: int, silent: int, hangs: threading.Event, size: int) -> None:
    while stop not in (ready := select.select([device, stop], [], [])[0]):
        request = os.read(ready[0], 1 << 17)
        _, opcode, number, node = _REQUEST.unpack_from(request)
        if opcode == silent:
            hangs.set()
        elif opcode not in _UNANSWERED:
            error, body = _reply(opcode, node, request[_BODY_AT:], size)
            os.write(device, _ANSWER.pack(_ANSWER.size + len(body), -error, number) + body)


def _reply(opcode: int, node: int, body: bytes, file_size: int) -> tuple[int, bytes]:
    if opcode == _INIT:
        return 0, body[:12] + bytes(52)
    if opcode == LOOKUP and body.rstrip(b"\0") != _NAME:
        return errno.ENOENT, b""
    if opcode == LOOKUP:
        return 0, struct.pack("=QQQQII", _FILE, 0, _VALID_S, _VALID_S, 0, 0) + _attributes(_FILE, file_size)
    if opcode == _GETATTR:
        return 0, struct.pack("=QII", _VALID_S, 0, 0) + _attributes(node, file_size)
    if opcode in _OPEN:
        return 0, bytes(16)
    if opcode in (READ, READ_DIRECTORY):
        offset, size = struct.unpack_from("=QI", body, 8)
        content = bytes(file_size) if opcode == READ else struct.pack("=QQII8s", _FILE, 1, len(_NAME), 8, _NAME)
        return 0, content[offset : offset + size] if opcode == READ or not offset else b""
    return errno.ENOSYS, b""


def _attributes(node: int, file_size: int) -> bytes:
    mode, size = (0o100644, file_size) if node == _FILE else (0o40755, 0)
    return struct.pack("=6Q10I", node, size, size >> 9, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
