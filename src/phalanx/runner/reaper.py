"""Ends what is left of a job on this node, and proves it: marked processes and their descendants belong to the job."""

from __future__ import annotations

import os
import signal
import time

from phalanx.node.proc_files import read_each
from phalanx.runner.checked import VERB_AT
from phalanx.runner.system import MARK, process_stats, reap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional, Set, Tuple

    Identity = Tuple[int, str]  # pid and start time: a pid alone may be used again

# mpiexec ends a moment before its own helpers do, which are not signalled for this long.
PATIENCE_S = 0.5
GRACE_S = 5.0
# Time for the kernel to remove killed processes; one that waits for a dead NFS server may never end.
KILL_WAIT_S = 5.0


class Sweep:
    """Ends every process of a job: waits a moment, sends SIGTERM, after grace_s SIGKILL, until none is left.

    KILL_WAIT_S after SIGKILL it gives up, and reports what is left.

    `root`: descendants of this process belong to the job too, even without the mark.
    """

    def __init__(self, job_id: str, root: Optional[int] = None, grace_s: float = GRACE_S) -> None:
        self._job_id = job_id
        self._root = root
        self._ask_at = time.monotonic() + PATIENCE_S
        self._insist_at = self._ask_at + grace_s
        self._signalled: Dict[Identity, str] = {}
        self._killed: Set[Identity] = set()
        self._clean_looks = 0

    def step(self) -> Optional[Dict[str, List[str]]]:
        """Search once. Return the report when the sweep is over, else None: call again soon.

        "ended" names what had to be signalled, "killed" what needed SIGKILL, "left" what still runs.
        """
        found, unclear = search(self._job_id, self._root)
        if not found and not unclear:
            # The second search finds a process whose parent forked and ended between two reads of /proc.
            self._clean_looks += 1
            return self._report({}) if self._clean_looks > 1 or not self._signalled else None
        self._clean_looks = 0
        now = time.monotonic()
        if now > self._insist_at + KILL_WAIT_S:
            return self._report({**found, **unclear})
        if now < self._ask_at:
            return None
        for identity, name in found.items():
            self._signal(identity, name, insist=now > self._insist_at)
        return None

    def _signal(self, identity: Identity, name: str, insist: bool) -> None:
        if insist:
            self._killed.add(identity)
            kill(identity[0], signal.SIGKILL)
        elif identity not in self._signalled:
            # A stopped process handles SIGTERM only when it continues.
            kill(identity[0], signal.SIGTERM)
            kill(identity[0], signal.SIGCONT)
        self._signalled[identity] = name

    def _report(self, left: Dict[Identity, str]) -> Dict[str, List[str]]:
        return {
            "ended": [f"{name} ({pid})" for (pid, _), name in self._signalled.items()],
            "killed": [f"{self._signalled[one]} ({one[0]})" for one in self._killed],
            "left": [f"{name} ({pid})" for (pid, _), name in left.items()],
        }


def sweep(job_id: str, grace_s: float = GRACE_S) -> Dict[str, List[str]]:
    """Sweep a node whose starter does not answer; takes at most PATIENCE_S + grace_s + KILL_WAIT_S.

    A starter that still lives is sent SIGTERM: it may be about to start what its runner last requested, and only it
    knows its orphans without the mark.
    """
    work = Sweep(job_id, grace_s=grace_s)
    deadline = time.monotonic() + PATIENCE_S + grace_s + KILL_WAIT_S
    signalled: Set[int] = set()
    while True:
        starters = find_starters(job_id)
        for pid in starters - signalled:
            kill(pid, signal.SIGTERM)
        signalled |= starters
        report = work.step()
        if report is not None and (not starters or time.monotonic() > deadline):
            return {**report, "left": [*report["left"], *(f"its starter ({pid})" for pid in sorted(starters))]}
        reap()
        time.sleep(0.02)


def find_starters(job_id: str) -> Set[int]:
    """Return the job's starters on this node, and their guards, which have the same command line."""
    return {pid for pid, job in _starters().items() if job == job_id or job_id == f"{job.rpartition('.')[0]}."}


def has_other_starters(job_id: str) -> bool:
    """Return whether another job than this one is on this node."""
    return bool({*_starters().values()} - {job_id})


def _starters() -> Dict[int, str]:
    """Return the jobs of the starters on this node, and of their guards, by pid."""
    lines, _ = read_each(_pids(), "cmdline")
    return {pid: job for pid, line in lines.items() if (job := _job_of_starter(line))}


def _job_of_starter(line: bytes) -> str:
    """Return the id of the job whose starter, or guard, has this command line; "" for any other process."""
    words = line.decode(errors="replace").split("\0")
    # … starter JOB …, or, started by a batch scheduler, … attend SCHEDULER …/JOB …
    verb, first, second = (*words[VERB_AT : VERB_AT + 3], "", "", "")[:3]
    if verb == "attend":
        return os.path.basename(second)
    return first if verb == "starter" else ""


def find(job_id: str, root: Optional[int] = None) -> Dict[Identity, str]:
    """Return every live process of the job on this node, by pid and start time, except this one and its ancestors.

    "ID." means those of all tasks of an array.
    """
    return search(job_id, root)[0]


def search(job_id: str, root: Optional[int] = None) -> Tuple[Dict[Identity, str], Dict[Identity, str]]:
    """Return what `find` returns, and those of this user's processes that hang, so that nobody can read their mark."""
    table = processes()
    environments, hanging = read_each((pid for pid, stat in table.items() if stat["start"]), "environ")
    hanging |= {pid for pid, stat in table.items() if not stat["start"]}
    # An id has no "." at its end, so only for tasks does the mark's end not count.
    mark = f"\0{MARK}={job_id}".encode() + b"\0" * (not job_id.endswith("."))
    ours = {pid for pid, text in environments.items() if mark in b"\0%b\0" % text} | ({root} if root else set())
    add_descendants(ours, children_of(table))
    protected = _ancestors(os.getpid(), table)

    def named(pids: Set[int], form: str) -> Dict[Identity, str]:
        live = [(pid, table[pid]) for pid in sorted(pids - protected) if pid in table]
        return {(pid, stat["start"]): form % stat["name"] for pid, stat in live if stat["state"] not in "ZX"}

    return named(ours, "%s"), named({pid for pid in hanging - ours if _is_own(pid)}, "perhaps %s")


def processes() -> Dict[int, Dict[str, str]]:
    """Return what process_stats knows of each process on this node, by pid."""
    return process_stats(_pids())


def children_of(table: Mapping[int, Dict[str, str]]) -> Dict[int, List[int]]:
    """Return each parent's children, from the result of `processes`."""
    children: Dict[int, List[int]] = {}
    for pid, stat in table.items():
        children.setdefault(int(stat["parent"]), []).append(pid)
    return children


def add_descendants(ours: Set[int], children: Mapping[int, List[int]]) -> None:
    """Add all descendants of these processes to them."""
    todo = list(ours)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in ours:
                ours.add(child)
                todo.append(child)


def _ancestors(pid: int, table: Dict[int, Dict[str, str]]) -> Set[int]:
    line = set()
    while pid in table and pid not in line:
        line.add(pid)
        pid = int(table[pid]["parent"])
    return line | {pid}


def _pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _is_own(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False  # it has ended


def kill(pid: int, number: int) -> None:
    """Send a signal; no error when the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        pass  # a setuid program: the report shows it as left


def kill_group(leader: int) -> None:
    """Kill a process that was started in a session of its own, and its children there; no error if it has ended."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # a child that was just forked has no group yet
    kill(leader, signal.SIGKILL)


def signal_group(pid: int) -> None:
    """Send SIGTERM to the group of a process, or to the process alone while it has no group of its own yet."""
    try:
        os.killpg(pid, signal.SIGTERM)
    except (ProcessLookupError, PermissionError):
        kill(pid, signal.SIGTERM)


def has_group(pid: int) -> bool:
    """Return whether a process of this group lives."""
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False  # it has ended; or the number is another user's by now
    return True
