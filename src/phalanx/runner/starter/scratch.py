"""Removes what a job's processes may leave on a node: temporary files, shared memory, semaphores, queues, sockets."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import time

from phalanx.node.proc_files import mounts, read_each
from phalanx.objects import trees
from phalanx.runner.names import REASON, REASON_FILE
from phalanx.runner.reaper import find, has_other_starters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Set, Tuple

_SHARED_MEMORY = "/dev/shm"
_OWN_PART = "/phalanx-job-"
_MAPPED = os.fsencode(f"{_SHARED_MEMORY}/")
# Open MPI 4, Open MPI 5, MPICH: a rank that is killed leaves its segment, 2 to 16 MiB each.
_SEGMENTS = ("vader_segment.", "sm_segment.", "mpich_shm_")
# PyTorch (`file_system`), Python's multiprocessing, NCCL, MXNet, UCX, LLVM's OpenMP, joblib, and named semaphores of
# any program: their names do not show the job, and a process that has one by its name need not have it mapped yet.
_OF_LIBRARIES = ("torch_", "psm_", "sem.", "nccl-", "mx_", "ucx_shm_posix_", "__KMP_REGISTERED_LIB_")
_OF_LIBRARIES += ("joblib_memmapping_folder_",)
# Of POSIX; where this is mounted, each queue is a file.
_QUEUES = "/dev/mqueue"
# System V's kinds, with the field that has an object's number (proc_sysvipc(5)). Only that of shared memory shows the
# process that made it, and whether one uses it.
_SYSTEM_V = {"shm": "shmid", "sem": "semid", "msg": "msqid"}
_IPC_RMID = 0
# Hydra writes one for each of its daemons, which their children read, and does not use TMPDIR.
_FILES = ("hydra_hwloc_xmlfile_",)
_HYDRAS_DAEMON = "hydra_pmi_proxy"
_SHORT_TEMPORARY = "/tmp"
# On the node's disk: /tmp may be memory.
_ON_DISK = "/var/tmp"
# A look at the memory of a job's processes takes milliseconds: it is not repeated for what is another job's.
_LOOKS = 3


class Scratch:
    """The job's own directories on this node: its processes' TMPDIR and HOME, removed when the last of them has ended.

    The names are short because the paths of Ray's and Open MPI's sockets must not be longer than 107 bytes. Programs
    read settings and code from HOME, so that of the account would let an ended job steer later ones.
    """

    def __init__(self, job_id: str) -> None:
        self.path = os.path.join(os.environ.get("TMPDIR", _SHORT_TEMPORARY), f"phalanx-{job_id}")
        on_disk = _ON_DISK if os.access(_ON_DISK, os.W_OK) else os.path.dirname(self.path)
        self.home = os.path.join(on_disk, f"phalanx-{job_id}-home")
        self._reason_path = os.path.join(self.path, REASON_FILE)
        self._job_id = job_id
        self._is_inside = _is_own_memory()
        self._since = time.time()
        self._own: Set[str] = set()  # shared memory that processes of this job have used
        self._users = set(_ours(_SHARED_MEMORY, ("",), 0.0)) - set(_ours(_SHARED_MEMORY, _OF_LIBRARIES, 0.0))
        self._looks: Dict[str, int] = {}  # by path, or by the pid in it
        self._pids: Set[str] = set()  # of this job's processes
        self._before: Set[Tuple[str, int]] = set(_of_system_v())  # objects that this job did not make

    def make(self) -> None:
        """Create the directories, private to this user. Raises OSError."""
        for path in (self.path, self.home):
            os.makedirs(path, 0o700, exist_ok=True)

    def variables(self) -> Dict[str, str]:
        """Return the variables by which the job's processes find these."""
        return {"TMPDIR": self.path, "HOME": self.home, REASON: self._reason_path}

    def say_why(self, reason: str) -> None:
        """Write for the job's processes why they are signalled. They may have filled the disk, or removed the place."""
        beside = f"{self._reason_path}.{os.getpid()}"
        try:
            # Not in place: a job could have put a link or a pipe there.
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(reason)
            os.replace(beside, self._reason_path)
        except OSError:
            pass

    def look(self, last: bool = False) -> None:
        """Note which new shared memory the job's processes use. Its names will not show that.

        Call this repeatedly while they live, at the `last` moment, too.
        """
        if self._is_inside:
            return
        new = [path for path in _ours(_SHARED_MEMORY, ("",), self._since) if not self._is_own(path)]
        new = [path for path in new if path not in self._users]
        if not last:
            new = [path for path in new if self._looks.get(_maker(path) or path, 0) < _LOOKS]
        makers = {f"maker {one['cpid']}" for one in self._new_of_system_v("shm")}
        if not last:
            makers = {maker for maker in makers if self._looks.get(maker, 0) < _LOOKS}
        if new or makers:
            pids = [pid for pid, _ in find(self._job_id, os.getpid())]
            in_use, _ = _used_by(pids)
            self._pids.update(map(str, pids))
            self._own.update(path for path in new if _is_among(path, in_use))
            seen = {_maker(path) or path for path in new} | makers
            self._looks.update({one: self._looks.get(one, 0) + 1 for one in seen})

    def _is_own(self, path: str) -> bool:
        return path in self._own or _maker(path) in self._pids

    def remove(self) -> None:
        """Remove the directories, and unused files that engines wrote elsewhere since this was created.

        So does the unused shared memory that `look` has seen. When no other job is on the node, all that libraries
        left goes, also that of earlier jobs, and semaphores and queues that were made meanwhile.
        """
        for path in (self.path, self.home):
            if os.path.isdir(path):
                trees.remove(path)
        segments, files = _ours(_SHARED_MEMORY, _SEGMENTS, self._since), _ours(_SHORT_TEMPORARY, _FILES, self._since)
        is_alone = not has_other_starters(self._job_id)
        if is_alone:
            # Those of engines, too: a recipe's check starts one outside of any job, for example.
            segments = _ours(_SHARED_MEMORY, (*_SEGMENTS, *_OF_LIBRARIES), 0.0)
            files += _ours(_QUEUES, ("",), self._since) if os.path.isdir(_QUEUES) else []
        segments += filter(self._is_own, _ours(_SHARED_MEMORY, ("",), self._since))
        if self._is_inside:
            for path in _ours(_SHARED_MEMORY, ("",), 0.0):
                _unlink(path)
        self._remove_of_system_v(is_alone)
        for path in filter(_is_abandoned, _ours(_SHORT_TEMPORARY, ("",), self._since) if is_alone else ()):
            _unlink(path)
        for path in _unused(segments) if segments else ():
            _unlink(path)
        # A file does not show which job it belongs to, and none is kept open. This job's own daemons have ended.
        if files and not _runs(_HYDRAS_DAEMON):
            for path in files:
                _unlink(path)

    def _new_of_system_v(self, kind: str) -> List[Dict[str, int]]:
        """Return this user's objects that were made since this was created, and that no process is known to use."""
        found = {key: one for key, one in _of_system_v((kind,)).items() if key not in self._before}
        return [one for one in found.values() if one["uid"] == os.getuid() and not one.get("nattch")]

    def _remove_of_system_v(self, is_alone: bool) -> None:
        libc = ctypes.CDLL(None)
        for one in self._new_of_system_v("shm"):
            if is_alone or str(one["cpid"]) in self._pids:
                libc.shmctl(one["shmid"], _IPC_RMID, None)
        if is_alone:
            for one in self._new_of_system_v("sem"):
                libc.semctl(one["semid"], 0, _IPC_RMID)
            for one in self._new_of_system_v("msg"):
                libc.msgctl(one["msqid"], _IPC_RMID, None)


def _is_own_memory() -> bool:
    """Return whether /dev/shm is the job's own here, made by the agent (node.shared_memory): a part of the node's."""
    return any(place == _SHARED_MEMORY and part.startswith(_OWN_PART) for part, place in (f[3:5] for f in mounts("")))


def _ours(directory: str, beginnings: Tuple[str, ...], since: float) -> List[str]:
    found = []
    try:
        names = os.listdir(directory)
    except FileNotFoundError:  # some containers have no /dev/shm
        names = []
    for name in names:
        if name.startswith(beginnings):
            path = os.path.join(directory, name)
            try:
                status = os.lstat(path)
            except OSError:
                continue  # another process removed it
            if status.st_uid == os.getuid() and status.st_mtime >= since - 1:
                found.append(path)
    return found


def _maker(path: str) -> str:
    """Return the pid of the process that made shared memory, if it is in the name (torch_546_1316829631_292)."""
    name = os.path.basename(path)
    beginning = next((one for one in _OF_LIBRARIES if name.startswith(one)), name)
    pid, more, _ = name[len(beginning) :].partition("_")
    return pid if more and pid.isdigit() else ""


def _of_system_v(kinds: Iterable[str] = tuple(_SYSTEM_V)) -> Dict[Tuple[str, int], Dict[str, int]]:
    """Return System V's objects on this node, by kind and number; none where the kernel has none."""
    found = {}
    for kind in kinds:
        try:
            with open(f"/proc/sysvipc/{kind}") as file:
                names, *rows = (line.split() for line in file)
        except (OSError, ValueError):
            continue
        for row in rows:
            one = dict(zip(names, map(int, row)))  # noqa: B905 - Python 3.9 has no `strict`
            found[kind, one[_SYSTEM_V[kind]]] = one
    return found


def _is_abandoned(path: str) -> bool:
    """Return whether this is a socket that no process has bound. A server of streams sees nothing of the attempt."""
    try:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                probe.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        pass  # it has gone, or is of another kind, and bound
    return False


def _unused(paths: List[str]) -> List[str]:
    """Return those that no process of this user has mapped or open, or may have: another job may have just begun."""
    in_use, is_all = _used_by(_own_pids())
    return [path for path in paths if not _is_among(path, in_use)] if is_all else []


def _used_by(pids: Iterable[int]) -> Tuple[Set[str], bool]:
    """Return the paths of what these processes have mapped in /dev/shm, or open; and whether all could be asked."""
    pids = list(pids)
    maps, hanging = read_each(pids, "maps")
    # As bytes: a job's file may be named with what text takes for the end of a line, or for a space.
    lines = [line.split(None, 5) for text in maps.values() for line in text.split(b"\n")]
    in_use = {os.fsdecode(line[5]) for line in lines if len(line) > 5 and line[5].startswith(_MAPPED)}
    for pid in pids:
        try:
            in_use.update(os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            continue  # it has ended
    return in_use, not hanging


def _is_among(path: str, in_use: Set[str]) -> bool:
    return path in in_use or any(one.startswith(f"{path}/") for one in in_use)


def _runs(program: str) -> bool:
    """Return whether a process of this user runs the program, or may."""
    lines, hanging = read_each(_own_pids(), "cmdline")
    return bool(hanging) or any(
        os.path.basename(os.fsdecode(line.partition(b"\0")[0])) == program for line in lines.values()
    )


def _own_pids() -> List[int]:
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid == os.getuid():
                pids.append(int(pid))
        except OSError:
            continue  # it has ended
    return pids


def _unlink(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        trees.remove(path)
        return
    try:
        os.unlink(path)
    except OSError:
        pass
