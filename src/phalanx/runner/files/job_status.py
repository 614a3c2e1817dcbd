"""A job at one moment, the same on the head and on the user's machine, as state.json has it.

Any job can write into every job's directory, and so into the head's answers: what is read is checked, field by field.
These are tuples, as the roster's are: a process that only follows a job starts 6 ms sooner without `dataclasses`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from phalanx.counts import first_of
from phalanx.node.validate import Invalid, count, fields, require_format, truth
from phalanx.runner.files.array import tasks_in
from phalanx.runner.files.schema import (
    FORMAT,
    allocation_id,
    by_name,
    commit,
    job_id,
    large,
    lines,
    number,
    optional,
    priority,
    text,
    texts,
    tuple_of,
    whole,
    words,
)

if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

    from phalanx.runner.files.job_record import JobRecord
    from phalanx.runner.files.schema import Check


class JobState(str, Enum):
    """The states of a job, in order; the last six are final.

    `damaged`: its record can't be read, so nothing more is known of it. No record contains it. `stop` ends any
    processes that are left.
    """

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    TIMED_OUT = "timed out"
    LOST = "lost"
    DAMAGED = "damaged"

    @property
    def final(self) -> bool:
        return self not in (JobState.PENDING, JobState.RUNNING)


UNCHECKED = "could not be checked"
"""Begins the message about a node that did not answer at a job's end."""


class NodeVerdict(NamedTuple):
    """What the end of a job found on one node. `clean`: proved that nothing is left; `killed`: how many were ended."""

    node: str
    clean: bool
    killed: int
    message: str

    @classmethod
    def of(cls, node: str, report: Mapping[str, Sequence[str]]) -> NodeVerdict:
        """Return a node's verdict from the report of its sweep."""
        left, ended = report["left"], report["ended"]
        message = f"could not be ended: {first_of(left)}" if left else ""
        if ended and not left:
            message = f"had to be ended: {first_of(ended)}"
        return cls(node, not left, len(ended), message)


class Attempt(NamedTuple):
    """The result of one attempt.

    position   where its output begins in the index
    exit_code  the job's exit code if this attempt is the last; None when it was lost with its runner
    ran_s      seconds from the start of its processes to its end; None when none was started
    lived_s    seconds that the first failed process had lived, without the engine's time before and after its ranks
    died       whether it was ended from outside (a node, the runner): the same program may succeed elsewhere
    gave_up    whether its engine has restarted the ranks as often as it was allowed to
    """

    position: int
    message: str = ""
    exit_code: Optional[int] = None
    ran_s: Optional[float] = None
    lived_s: Optional[float] = None
    died: bool = False
    gave_up: bool = False

    @property
    def is_over(self) -> bool:
        """Whether its end was recorded: every attempt that did not succeed has a message."""
        return bool(self.message)


class RunnerIdentity(NamedTuple):
    """Which process is a job's runner, or receives its submission; `head` is the instance that it runs on."""

    pid: int
    start: str
    boot_id: str
    head: str

    @classmethod
    def from_record(cls, value: Any) -> RunnerIdentity:
        """Build one from JSON. Raises Invalid."""
        return cls(**fields(_RUNNER, value))


class Held(NamedTuple):
    """What a batch scheduler holds for a job, by its own id."""

    scheduler: str
    id: str


class JobStatus(NamedTuple):
    """A job at one moment. Times are seconds since 1970 on the head's clock.

    exit_code   of the first process that failed, 128 + signal, 127 for a missing command; None unless it ended itself
    message     what ended it, and where
    tail        the last lines of the first process that failed
    nodes       one verdict per node, once it has ended
    attempt     how often it was restarted so far, of `restarts` allowed
    ranks       how many of its processes each node has, or had
    commit      that of its code, with "-dirty" if that has changes; "" if none is known
    activity    while no rank has written anything: what the first one does
    load        what its load says, a sentence each, once it has ended
    tasks       of an array: how many of its tasks are in each state

    The others are the head's own: the id of the cluster's stack, the GPUs on each node, whether the job waits for
    slots, its attempts, its runner, and what a batch scheduler holds for it.
    """

    id: str
    name: str
    launcher: str
    command: Tuple[str, ...]
    state: JobState
    submitted_at: float
    started_at: Optional[float] = None
    ended_at: Optional[float] = None
    processes: int = 0
    exit_code: Optional[int] = None
    message: str = ""
    tail: Tuple[str, ...] = ()
    nodes: Tuple[NodeVerdict, ...] = ()
    attempt: int = 0
    restarts: int = 0
    priority: int = 0
    tags: Mapping[str, str] = {}
    commit: str = ""
    activity: str = ""
    load: Tuple[str, ...] = ()
    tasks: Mapping[str, int] = {}
    stack: str = ""
    ranks: Mapping[str, int] = {}
    gpus: Mapping[str, Sequence[str]] = {}
    waits: bool = False
    attempts: Tuple[Attempt, ...] = ()
    has_secrets: bool = False
    runner: Optional[RunnerIdentity] = None
    allocation: Optional[Held] = None

    @classmethod
    def first(cls, job: JobRecord) -> JobStatus:
        """Return the status of a job that was just accepted."""
        own = {name: getattr(job, name) for name in _REQUESTED}
        own.update(name=job.name or "", tags=job.tags, has_secrets=bool(job.secrets), commit=job.env.get(_COMMIT, ""))
        if job.array:
            own["tasks"] = {JobState.PENDING.value: len(tasks_in(job.array).indices)}
        return cls(**own, state=JobState.PENDING)

    @classmethod
    def from_record(cls, value: Any, what: str = "the job") -> JobStatus:
        """Build one from what `to_record` returned. Raises Invalid, and Newer for a newer phalanx's `what`."""
        require_format(value, FORMAT, what)
        return cls(**fields(_CHECKS, value))

    def to_record(self) -> Dict[str, Any]:
        """Return plain data, for JSON."""
        return {
            "format": FORMAT,
            **self._asdict(),
            "state": self.state.value,
            "nodes": [one._asdict() for one in self.nodes],
            "attempts": [one._asdict() for one in self.attempts],
            "runner": self.runner and self.runner._asdict(),
            "allocation": self.allocation and self.allocation._asdict(),
        }

    def to_json(self) -> Dict[str, Any]:
        """Return plain data, for --json: without the head's own."""
        shown = {name: value for name, value in self.to_record().items() if name not in _OF_THE_HEAD}
        return {**shown, "killed": self.killed, "verified": self.verified}

    def has(self, tags: Mapping[str, str]) -> bool:
        """Return whether the job has all of these tags."""
        return tags.items() <= self.tags.items()

    @property
    def killed(self) -> int:
        """The number of processes that were left at the job's end and had to be ended, on all nodes."""
        return sum(verdict.killed for verdict in self.nodes)

    @property
    def verified(self) -> bool:
        """Whether it is proved that no process of the job is left on any node. One without processes needs no proof."""
        if self.state is JobState.DAMAGED:
            return False
        return self.state.final and bool(self.nodes or not self.processes) and all(one.clean for one in self.nodes)

    @property
    def process_exit_code(self) -> int:
        """The exit code of `phalanx run`."""
        if self.exit_code is not None:
            return self.exit_code
        return 130 if self.state is JobState.STOPPED else 1

    def duration_s(self, now: float) -> float:
        """Return the time from the job's start (0 before it) to its end, or to `now`."""
        return max(0.0, (self.ended_at or now) - self.started_at) if self.started_at else 0.0


_REQUESTED = ("id", "launcher", "command", "submitted_at", "restarts", "priority", "stack")
# job_record.COMMIT; its module takes longer to import.
_COMMIT = "PHALANX_COMMIT"
_OF_THE_HEAD = ("format", "stack", "gpus", "waits", "attempts", "has_secrets", "runner", "allocation", "activity")


def _state(value: Any) -> JobState:
    try:
        return JobState(value)
    except ValueError:
        raise Invalid("no job has such a state") from None


def _tasks(value: Any) -> Dict[str, int]:
    return {_state(name).value: number for name, number in by_name(count)(value).items()}


def _made(kind: Any, checks: Dict[str, Check]) -> Check:
    """Return a check for an object; it returns one of this kind."""
    return lambda value: kind(**fields(checks, value))


_VERDICT: Dict[str, Check] = {"node": text, "clean": truth, "killed": count, "message": words}
_ATTEMPT: Dict[str, Check] = {
    "position": large,
    "message": words,
    "exit_code": optional(None, whole),
    "ran_s": optional(None, number),
    "lived_s": optional(None, number),
    "died": truth,
    "gave_up": truth,
}
_RUNNER: Dict[str, Check] = {"pid": count, "start": text, "boot_id": text, "head": text}
_CHECKS: Dict[str, Check] = {
    "id": job_id,
    "name": words,
    "launcher": words,
    "command": texts,
    "state": _state,
    "submitted_at": number,
    "started_at": optional(None, number),
    "ended_at": optional(None, number),
    "processes": count,
    "exit_code": optional(None, whole),
    "message": words,
    "tail": lines,
    "nodes": tuple_of(_made(NodeVerdict, _VERDICT)),
    "attempt": count,
    "restarts": count,
    "priority": priority,
    "tags": by_name(words),
    "commit": commit,
    "activity": words,
    "load": lines,
    "tasks": _tasks,
    "stack": text,
    "ranks": by_name(count),
    "gpus": by_name(texts),
    "waits": truth,
    "attempts": tuple_of(_made(Attempt, _ATTEMPT)),
    "has_secrets": truth,
    "runner": optional(None, RunnerIdentity.from_record),
    "allocation": optional(None, _made(Held, {"scheduler": text, "id": allocation_id})),
}
