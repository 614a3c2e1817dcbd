"""Give each job on this node a /dev/shm and an IPC namespace of its own, which end with its last process.

Only root can do that and leave `sudo` and FUSE as they are. So a job's starter sends the agent its own command and
streams, and a process of the agent, in new namespaces, becomes what the starter was: same user, groups, limits and
control group. Otherwise it ends, and the starter serves its job where it is.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import resource
import socket
import struct
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List, NoReturn

from phalanx.node import account, credentials, files
from phalanx.node.command import CommandError, run
from phalanx.node.settings import Settings

# These three are also defined in runner.starter.inside.
SOCKET = "/run/phalanx-memory.sock"
READY, GO = b"ready", b"go"
_PLACE, _BEGINNING = "/dev/shm", "phalanx-"
_REQUEST_BYTES = 1 << 18
# Stdin, stdout, stderr and the socket whose other end the starter that asked keeps: they become 0 to 3.
_STREAMS = 4
_REMOVED_WITHIN_S, _LOOK_EVERY_S = 60, 1.0
_NEW_MOUNTS, _NEW_IPC = 0x00020000, 0x08000000  # CLONE_NEWNS, CLONE_NEWIPC
_BIND, _RECURSIVE, _SLAVE, _SHARED = 1 << 12, 1 << 14, 1 << 19, 1 << 20
# A new namespace begins with the kernel's own limits, not with those that this node's administrator has set.
_LIMITS = [f"/proc/sys/kernel/{name}" for name in ("shmmax", "shmall", "shmmni", "msgmax", "msgmnb", "msgmni", "sem")]
_LIMITS += [f"/proc/sys/fs/mqueue/{name}" for name in ("queues_max", "msg_max", "msgsize_max")]
_RLIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def serve(settings: Settings, root: str = "") -> None:
    """Start serving in a thread, and return."""
    with contextlib.suppress(OSError):
        _share_mounts()
    room = Room(account.uid_of(settings.job_user, root))
    room.begin()
    credentials.listen(SOCKET, room.serve, socket.SOCK_SEQPACKET)


class Room:
    """The directories that jobs on this node have as their /dev/shm. They are in the node's own, and share its size."""

    def __init__(self, uid: int) -> None:
        self._uid = uid

    def begin(self) -> None:
        """Free, in threads, what jobs have left that an agent before this one had let in."""
        for one in os.scandir(_PLACE):
            if one.name.startswith(_BEGINNING) and one.stat(follow_symlinks=False).st_uid == 0:
                threading.Thread(target=_free, args=(one.path,), daemon=True).start()

    def serve(self, starter: socket.socket, has_sent: Callable[[], object] = lambda: None) -> None:
        """Execute a starter's command in new namespaces; return when it has ended, and its memory is free."""
        peer, uid, _ = struct.unpack("3i", starter.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != self._uid:
            return
        text, streams = _receive(starter)
        try:
            has_sent()
            request = json.loads(text)
            place = tempfile.mkdtemp(prefix=_BEGINNING, dir=_PLACE)
            pid = os.fork()
            if pid == 0:
                _become(peer, starter, request, streams, place)
        finally:
            for fd in streams:
                os.close(fd)
            starter.close()
        os.waitpid(pid, 0)
        _free(place)


def _free(place: str) -> None:
    """Remove a job's shared memory as soon as its last process has ended."""
    number = os.lstat(place).st_ino
    while number in _used():
        time.sleep(_LOOK_EVERY_S)
    with contextlib.suppress(CommandError):
        run(["rm", "-rf", "--one-file-system", place], _REMOVED_WITHIN_S)


def _receive(starter: socket.socket) -> tuple[bytes, List[int]]:
    """Return a message and its descriptors. Raises ValueError if they are not as many as expected."""
    fds = array.array("i")
    room = socket.CMSG_SPACE(_STREAMS * fds.itemsize)
    text, ancillary, _, _ = starter.recvmsg(_REQUEST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if len(fds) != _STREAMS:
        for fd in fds:
            os.close(fd)
        raise ValueError(f"{len(fds)} descriptors")
    return text, fds.tolist()


def _used() -> set[int]:
    """Return the inodes of what processes see as /dev/shm."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found.add(os.stat(f"/proc/{pid}/root{_PLACE}").st_ino)
    return found


def _become(peer: int, starter: socket.socket, request: Dict[str, Any], streams: List[int], place: str) -> NoReturn:
    """Become the starter's command. Never returns; a failure before the starter has let it begin has no effect."""
    try:
        os.setsid()
        _join_control_group(peer)
        os.chmod(place, 0o1777)
        _separate(place)
        starter.send(READY)
        if starter.recv(len(GO)) == GO:
            _execute(peer, request, streams)
    finally:
        os._exit(1)


def _join_control_group(peer: int) -> None:
    """Move into the control groups of a process: a scheduler's limits hold, and this unit's end is not the job's.

    Raises OSError if that is not possible.
    """
    wanted = files.read(f"/proc/{peer}/cgroup")
    if files.read("/proc/self/cgroup") == wanted:
        return
    for _, kinds, path in (line.split(":", 2) for line in wanted.splitlines()):
        for hierarchy in [kinds.replace("name=", "")] if kinds else ["", "unified"]:
            with contextlib.suppress(OSError), open(f"/sys/fs/cgroup/{hierarchy}/{path}/cgroup.procs", "w") as file:
                file.write("0")
    if files.read("/proc/self/cgroup") != wanted:
        raise OSError(f"process {peer} is in control groups that can't be joined")


def _separate(place: str) -> None:
    """Move this process into a new mount and IPC namespace. Raises OSError."""
    limits = {path: files.read(path) for path in _LIMITS}
    _call("unshare", _NEW_MOUNTS | _NEW_IPC)
    # What the agent mounts later still appears there.
    _mount(b"none", b"/", _RECURSIVE | _SLAVE)
    _mount(place.encode(), _PLACE.encode(), _BIND)
    for path, text in limits.items():
        if files.read(path) != text:
            with open(path, "w") as file:
                file.write(text)


def _execute(peer: int, request: Dict[str, Any], streams: List[int]) -> None:
    """Execute the command as the user of this process, and with its limits. Raises OSError."""
    identity = {name: value.split() for name, _, value in _lines(f"/proc/{peer}/status")}
    uid, gid = int(identity["Uid"][0]), int(identity["Gid"][0])
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, peer))
    os.sched_setaffinity(0, os.sched_getaffinity(peer))
    for limit in _RLIMITS:
        wanted = resource.prlimit(peer, limit)
        if resource.getrlimit(limit) != wanted:
            resource.setrlimit(limit, wanted)
    if [str(group) for group in sorted(os.getgroups())] != sorted(identity["Groups"], key=int):
        os.setgroups([int(group) for group in identity["Groups"]])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    os.umask(int(identity["Umask"][0], 8))
    os.chdir(request["cwd"])
    # Two steps, so that none is overwritten before it is copied.
    for number, copy in enumerate([os.dup(fd) for fd in streams]):
        os.dup2(copy, number)
    os.execve(request["argv"][0], request["argv"], request["env"])


def _lines(path: str) -> List[tuple[str, str, str]]:
    return [line.partition(":") for line in files.read(path).splitlines()]


def _share_mounts() -> None:
    """Let namespaces that are made later get later mounts, as systemd does at each boot. Raises OSError."""
    root = next(line for line in files.read("/proc/self/mountinfo").splitlines() if line.split()[4] == "/")
    if " shared:" not in root:
        _mount(b"none", b"/", _RECURSIVE | _SHARED)


def _mount(source: bytes, target: bytes, flags: int) -> None:
    _call("mount", source, target, None, ctypes.c_ulong(flags), None)


def _call(name: str, *arguments: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
