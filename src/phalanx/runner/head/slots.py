"""The slots and GPUs that running jobs use: small jobs run where most are free, and a job may wait for free ones."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from phalanx.counts import first_of
from phalanx.node.validate import Invalid
from phalanx.runner.files import state as states
from phalanx.runner.files.schema import is_job_id
from phalanx.runner.head.runner_socket import socket_name

if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

    from phalanx.node.roster import Node, Roster
    from phalanx.runner.files.job_status import JobStatus
    from phalanx.runner.process import PreparedJob, Process

_SOCKETS = "/proc/net/unix"
# Choosing slots takes milliseconds; a runner that hangs must not keep others from starting.
_ALONE_WITHIN_S = 5.0
_LOOK_EVERY_S = 0.02
# The variables by which launchers give a process its own GPUs.
_GIVE_GPUS = ("CUDA_VISIBLE_DEVICES", "JAX_LOCAL_DEVICE_IDS")


def ranks_of(processes: Sequence[Process]) -> Dict[str, int]:
    """Return how many of the user's processes run on each node, which is the number of slots they use."""
    counts: Counter[str] = Counter()
    for process in processes:
        counts.update(process.ranks)
    return dict(counts)


def gpus_of(job: PreparedJob, processes: Sequence[Process], roster: Roster) -> Dict[str, List[str]]:
    """Return the GPUs that a job takes on each node, for other jobs to leave.

    Without `-n` these are all that it sees; else those that its processes are given, or one for each process. A user's
    own CUDA_VISIBLE_DEVICES is taken at its word.
    """
    seats, given, taken = seats_of(processes), _given(processes), {}
    for node in roster.nodes:
        if node.gpus and seats.get(node.name):
            seen = _seen(job, node)
            taken[node.name] = seen if job.processes is None else seen[: given[node.name] or seats[node.name]]
    return taken


def _seen(job: PreparedJob, node: Node) -> List[str]:
    chosen = job.env.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return _listed_in(chosen)
    return list(job.devices.get(node.name) or map(str, range(node.gpus)))


def _given(processes: Sequence[Process]) -> Counter[str]:
    """Count the GPUs that launchers give to single processes, by node."""
    counts: Counter[str] = Counter()
    for process in processes:
        for name in _GIVE_GPUS:
            counts[process.node] += len(_listed_in(process.env.get(name, "")))
    return counts


def _listed_in(text: str) -> List[str]:
    return [word for word in text.split(",") if word]


def seats_of(processes: Sequence[Process]) -> Dict[str, int]:
    """Return how many GPUs a job needs at least on each node with GPUs: one for each of the user's processes."""
    places: Counter[str] = Counter()
    for process in processes:
        places.update(process.places)
    return dict(places) or ranks_of(processes)


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
        self._gpus: Dict[str, Set[str]] = {}
        for status in self._others:
            self._taken.update(status.ranks)
            for node, numbers in status.gpus.items():
                self._gpus.setdefault(node, set()).update(numbers)

    @property
    def running(self) -> List[str]:
        """The ids of these jobs."""
        return [status.id for status in self._others]

    def roomy(self, job: PreparedJob, roster: Roster) -> Roster:
        """Return the roster for placing `-n` processes: only free slots if they suffice, the freest nodes first.

        A job that runs on every node, or names its nodes, gets the roster as it is.
        """
        if job.processes is None or job.hosts:
            return roster
        nodes = sorted(roster.nodes, key=lambda node: self._taken[node.name])
        free = [node._replace(slots=node.slots - self._taken[node.name]) for node in nodes]
        roomy = [node for node in free if node.slots >= (job.per_node or 1)]
        room = sum(job.per_node or node.slots for node in roomy)
        return roster._replace(nodes=tuple(roomy if room >= job.processes else nodes))

    def free_gpus(self, processes: Sequence[Process], roster: Roster) -> Dict[str, Tuple[str, ...]]:
        """Return the GPUs that the job is to see on its nodes, as many on each; {} if it may see all, or has to share.

        Launchers require the same number on all nodes.
        """
        seats = seats_of(processes)
        nodes = [node for node in roster.nodes if node.gpus and seats.get(node.name)]
        if not any(self._gpus.get(node.name) for node in nodes):
            return {}
        free = {node.name: self._free_on(node) for node in nodes}
        fewest = min(map(len, free.values()))
        is_enough = fewest >= max(seats.values())
        return {name: tuple(numbers[:fewest]) for name, numbers in free.items()} if is_enough else {}

    def _free_on(self, node: Node) -> List[str]:
        taken = self._gpus.get(node.name, ())
        return [str(number) for number in range(node.gpus) if str(number) not in taken]

    def shared(self, processes: Sequence[Process], roster: Roster) -> str:
        """Describe which of a job's slots, or GPUs, other jobs use already; "" when none."""
        return self._shared_slots(ranks_of(processes), roster) or self._shared_gpus(processes, roster)

    def _shared_gpus(self, processes: Sequence[Process], roster: Roster) -> str:
        seats = seats_of(processes)
        crowded = [node for node in roster.nodes if seats.get(node.name) and self._gpus.get(node.name)]
        if not crowded or self.free_gpus(processes, roster):
            return ""
        taken = ", ".join(f"{len(self._gpus[node.name])} of {node.gpus} on {node.name}" for node in crowded)
        names = {node.name for node in crowded}
        jobs = [status.id for status in self._others if status.gpus.keys() & names]
        return f"GPUs that are taken ({taken}) by {_listed(jobs)}"

    def _shared_slots(self, ranks: Mapping[str, int], roster: Roster) -> str:
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
        jobs = [status.id for status in self._others if status.ranks.keys() & set(crowded)]
        return f"slots that are taken ({taken}) by {_listed(jobs)}"

    def earlier(self, job: JobStatus) -> str:
        """Describe the jobs whose turn comes before this one's, by priority, then by time; "" when none."""
        waiting = [status.id for status in self._others if status.waits and _turn(status) < _turn(job)]
        return f"{_listed(waiting)}, which {'start' if len(waiting) > 1 else 'starts'} first" if waiting else ""


def _turn(job: JobStatus) -> Tuple[int, float]:
    return -job.priority, job.submitted_at


def _living(root: str, own: str) -> List[JobStatus]:
    """Return the statuses of the jobs that have a runner here and have not ended, in the order of their ids."""
    prefix = "@" + socket_name("")
    # Any process may give its socket any name.
    with open(_SOCKETS, errors="replace") as file:
        names = {line.rstrip("\n").rpartition(" ")[2] for line in file if prefix in line}
    ids = sorted(name[len(prefix) :] for name in names)
    found = (_status(os.path.join(root, job_id)) for job_id in ids if is_job_id(job_id) and job_id != own)
    return [status for status in found if status and not status.state.final]


def _status(directory: str) -> Optional[JobStatus]:
    """Return a job's status; None for a directory without a valid record."""
    try:
        return states.read(directory)
    except (OSError, Invalid):
        return None


def _listed(jobs: List[str]) -> str:
    return f"job {first_of(jobs, most=1)}"
