"""The slots that running jobs use: a small job runs where most are free, and a job may wait until enough are."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid
from phalanx.runner.files import state as states
from phalanx.runner.files.schema import is_job_id
from phalanx.runner.head.doorway import socket_name

if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Mapping, Sequence

    from phalanx.node.roster import Roster
    from phalanx.runner.process import JobDescription, Process

_SOCKETS = "/proc/net/unix"
# Choosing slots takes milliseconds; a runner that hangs must not keep others from starting.
_ALONE_WITHIN_S = 5.0
_LOOK_EVERY_S = 0.02


def ranks_of(processes: Sequence[Process]) -> Dict[str, int]:
    """Return how many of the user's processes run on each node, which is the number of slots they use."""
    counts: Counter[str] = Counter()
    for process in processes:
        counts.update(process.ranks)
    return dict(counts)


@contextmanager
def alone(directory: str) -> Iterator[None]:
    """Keep other jobs of the cluster from choosing slots, so that each sees what the previous one took.

    The lock is an abstract socket on the head, where all runners are: it ends with a runner that is killed.
    """
    root = os.stat(os.path.dirname(directory))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as lock:
        _bind(lock, f"\0phalanx-slots-{root.st_dev:x}-{root.st_ino:x}")
        yield


def _bind(lock: socket.socket, name: str) -> None:
    deadline = time.monotonic() + _ALONE_WITHIN_S
    while time.monotonic() < deadline:
        try:
            lock.bind(name)
            return
        except OSError:
            time.sleep(_LOOK_EVERY_S)


class Occupancy:
    """The slots that other jobs with a runner on this head use now."""

    def __init__(self, directory: str) -> None:
        self._id = states.job_id_of(directory)
        self._others = _living(os.path.dirname(directory), self._id)
        self._taken: Counter[str] = Counter()
        for state in self._others:
            self._taken.update(state["ranks"])

    def roomy(self, job: JobDescription, roster: Roster) -> Roster:
        """Return the roster for placing `-n` processes: only free slots if they suffice, the freest nodes first.

        A job that runs on every node, or names its nodes, gets the roster as it is.
        """
        if job.processes is None or job.hosts:
            return roster
        nodes = sorted(roster.nodes, key=lambda node: self._taken[node.name])
        free = [replace(node, slots=node.slots - self._taken[node.name]) for node in nodes]
        roomy = [node for node in free if node.slots >= (job.per_node or 1)]
        room = sum(job.per_node or node.slots for node in roomy)
        return replace(roster, nodes=tuple(roomy if room >= job.processes else nodes))

    def shared(self, ranks: Mapping[str, int], roster: Roster) -> str:
        """Describe which of a job's slots other jobs use already; "" when none."""
        crowded = [
            node.name
            for node in roster.nodes
            if node.name in ranks and self._taken[node.name] and ranks[node.name] + self._taken[node.name] > node.slots
        ]
        if not crowded:
            return ""
        taken = ", ".join(
            f"{self._taken[node.name]} of {node.slots} on {node.name}" for node in roster.nodes if node.name in crowded
        )
        jobs = [state["id"] for state in self._others if state["ranks"].keys() & set(crowded)]
        return f"slots that are taken ({taken}) by {_listed(jobs)}"

    def earlier(self, submitted_at: float) -> str:
        """Describe the jobs that have waited for slots longer than this one; "" when none."""
        waiting = [state for state in self._others if state["waits"] and state["submitted_at"] < submitted_at]
        return f"{_listed([state['id'] for state in waiting])}, which came first" if waiting else ""


def _living(root: str, own: str) -> List[states.State]:
    """Return the states of the jobs that have a runner here and have not ended, in the order of their ids."""
    prefix = "@" + socket_name("")
    with open(_SOCKETS) as file:
        names = {line.rstrip("\n").rpartition(" ")[2] for line in file if prefix in line}
    ids = sorted(name[len(prefix) :] for name in names)
    found = (_state(os.path.join(root, job_id)) for job_id in ids if is_job_id(job_id) and job_id != own)
    return [state for state in found if state and state["state"] not in states.FINAL]


def _state(directory: str) -> states.State:
    """Return a job's state; an empty one for a directory without a valid record."""
    try:
        return states.read(directory)
    except (OSError, Invalid):
        return {}


def _listed(jobs: List[str]) -> str:
    return f"job {jobs[0]}" + (f" and {len(jobs) - 1} more" if len(jobs) > 1 else "")
