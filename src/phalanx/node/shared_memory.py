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
import re
import resource
import socket
import struct
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple

from phalanx.node import account, credentials, files
from phalanx.node.command import CommandError, run
from phalanx.node.proc_files import mounts
from phalanx.node.settings import Settings

# These three are also defined in runner.starter.inside.
SOCKET = "/run/phalanx-memory.sock"
READY, GO = b"ready", b"go"
_PLACE, _BEGINNING = "/dev/shm", "phalanx-job-"
_REQUEST_BYTES = 1 << 18
# SO_PEERGROUPS, and the most that Python takes at once.
_PEERGROUPS, _GROUPS_BYTES = 59, 1024
# Stdin, stdout, stderr and the socket whose other end the starter that asked keeps: they become 0 to 3.
_STREAMS = 4
_REMOVED_WITHIN_S, _LOOK_EVERY_S = 60, 1.0
_NEW_MOUNTS, _NEW_IPC = 0x00020000, 0x08000000  # CLONE_NEWNS, CLONE_NEWIPC
_BIND, _RECURSIVE, _SLAVE, _SHARED = 1 << 12, 1 << 14, 1 << 19, 1 << 20
# A new namespace begins with the kernel's own limits, not with those that this node's administrator has set.
_LIMITS = [f"/proc/sys/kernel/{name}" for name in ("shmmax", "shmall", "shmmni", "msgmax", "msgmnb", "msgmni", "sem")]
_LIMITS += [f"/proc/sys/fs/mqueue/{name}" for name in ("queues_max", "msg_max", "msgsize_max")]
_RLIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class _Peer(NamedTuple):
    """Who asks, as the kernel tells it."""

    pid: int
    uid: int
    gid: int
    groups: List[int]


def serve(settings: Settings, root: str = "") -> None:
    """Start serving in threads, and return."""
    uid = account.uid_of(settings.job_user, root)
    with contextlib.suppress(OSError):
        _share_mounts()
    # Of jobs that an agent before this one has let in.
    for one in os.scandir(_PLACE):
        with contextlib.suppress(FileNotFoundError):  # a job may remove what it has made with such a name
            if one.name.startswith(_BEGINNING) and one.stat(follow_symlinks=False).st_uid == 0:
                threading.Thread(target=_free, args=(one.path,), daemon=True).start()
    credentials.listen(SOCKET, lambda starter, has_sent: _serve(starter, has_sent, uid), socket.SOCK_SEQPACKET)


def _serve(starter: socket.socket, has_sent: Callable[[], object], uid: int) -> None:
    """Execute a starter's command in new namespaces; return when it has ended, and its memory is free."""
    who = struct.unpack("3i", starter.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if who[1] != uid:
        return
    groups = starter.getsockopt(socket.SOL_SOCKET, _PEERGROUPS, _GROUPS_BYTES)
    text, streams = _receive(starter)
    try:
        has_sent()
        request = json.loads(text)
        place = tempfile.mkdtemp(prefix=_BEGINNING, dir=_PLACE)
        pid = os.fork()
        if pid == 0:
            _become(_Peer(*who, [*array.array("I", groups)]), starter, request, streams, place)
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


def _become(who: _Peer, starter: socket.socket, request: Dict[str, Any], streams: List[int], place: str) -> None:
    """Become the starter's command. Never returns; a failure before the starter has let it begin has no effect."""
    try:
        os.setsid()
        born = _born(who.pid)
        # A job's own processes could leave the others behind in this way.
        if not os.path.samefile(f"/proc/{who.pid}/root{_PLACE}", _PLACE):
            return
        _join_control_groups(who.pid)
        os.chmod(place, 0o1777)
        _separate(place)
        _take_limits(who.pid)
        starter.send(READY)
        # Its number may be another process's by now, whose limits are not the job's.
        if starter.recv(len(GO)) == GO and _born(who.pid) == born and born[0] == who.uid:
            try:
                _execute(who, request, streams)
            except OSError as error:  # nobody else would say why the job's part here ends
                os.write(streams[2], f"the starter can't begin with its own /dev/shm: {error}\n".encode())
    finally:
        os._exit(1)


def _born(pid: int) -> tuple[int, str]:
    """Return whose process this is, and when it began, in ticks since the boot. Raises OSError."""
    owner = os.stat(f"/proc/{pid}").st_uid
    return owner, files.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[19]


def _join_control_groups(peer: int) -> None:
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


def _take_limits(peer: int) -> None:
    """Give this process the priority, the cores, the resource limits and the umask of another. Raises OSError."""
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, peer))
    os.sched_setaffinity(0, os.sched_getaffinity(peer))
    for limit in _RLIMITS:
        wanted = resource.prlimit(peer, limit)
        if resource.getrlimit(limit) != wanted:
            resource.setrlimit(limit, wanted)
    os.umask(int(re.findall(r"^Umask:\s*(\d+)", files.read(f"/proc/{peer}/status"), re.MULTILINE)[0], 8))


def _execute(who: _Peer, request: Dict[str, Any], streams: List[int]) -> None:
    """Execute the command as the user who asked. Raises OSError."""
    if sorted(os.getgroups()) != sorted(who.groups):
        os.setgroups(who.groups)
    os.setresgid(who.gid, who.gid, who.gid)
    os.setresuid(who.uid, who.uid, who.uid)
    os.chdir(request["cwd"])
    # Two steps, so that none is overwritten before it is copied.
    for number, copy in enumerate([os.dup(fd) for fd in streams]):
        os.dup2(copy, number)
    os.execve(request["argv"][0], request["argv"], request["env"])


def _share_mounts() -> None:
    """Let namespaces that are made later get later mounts, as systemd does at each boot. Raises OSError."""
    root = next((fields for fields in mounts("") if fields[4] == "/"), [])
    if not any(field.startswith("shared:") for field in root):
        _mount(b"none", b"/", _RECURSIVE | _SHARED)


def _mount(source: bytes, target: bytes, flags: int) -> None:
    _call("mount", source, target, None, ctypes.c_ulong(flags), None)


def _call(name: str, *arguments: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
