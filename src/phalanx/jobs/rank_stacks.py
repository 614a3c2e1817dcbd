"""What each rank of a job does: taken through the job's runner, checked, and grouped by equal stacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from phalanx.errors import JobError, SharedSilent
from phalanx.jobs import toolbox
from phalanx.jobs.head_command import error_tail
from phalanx.jobs.job import ClusterAccess, open_job
from phalanx.node.validate import Invalid, truth
from phalanx.runner.names import NO_RUNNER, STATES
from phalanx.ssh import head_answers
from phalanx.waits import waiting

# More than a starter takes; nodes that answer later are named.
_ANSWER_WITHIN_S = 12.0
# The head may fetch py-spy in between, by two programs.
_TIMEOUT_S = 2 * _ANSWER_WITHIN_S + 200.0
_LONGEST, _MOST_FRAMES, _MOST_THREADS, _MOST_PROCESSES = 400, 64, 16, 65_536
_MOST_CPU_S = 1e12
_STOPPED = ("T", "t", "Z", "X")


class Frame(NamedTuple):
    """A call: its function, the file as people call it, the line, and whether it is in the job's own code."""

    function: str
    file: str
    line: int
    own: bool

    @property
    def place(self) -> str:
        """The file and the line."""
        return f"{self.file}:{self.line}"


class Thread(NamedTuple):
    """A Python thread; its innermost frame is the first."""

    name: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class RankStack:
    """What one rank does. Everything but `rank` and `node` is as the rank's node says, which the job can forge.

    `state` is the kernel's letter, `wchan` where in the kernel it sleeps, `reads` the file that it waits to read from
    ("": none), `why` the reason why there are no `threads`, of which the first is the main one.
    """

    rank: str
    node: str
    pid: int
    name: str = ""
    state: str = "R"
    wchan: str = ""
    cpu_s: float = 0.0
    reads: str = ""
    why: str = ""
    threads: tuple[Thread, ...] = ()

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The main thread's frames, the innermost first."""
        return self.threads[0].frames if self.threads else ()

    @property
    def does(self) -> str:
        """What it does, in a few words: "waits", "hangs in the kernel"."""
        return STATES.get(self.state, "runs")

    @property
    def key(self) -> object:
        """Equal for ranks that do the same."""
        stopped = self.state if self.state in _STOPPED else ""
        return (self.frames, stopped) if self.frames else (self.name, self.state, self.wchan, self.why)

    @property
    def place(self) -> str:
        """The function that it is in, and the line of the job's own code that led there."""
        if not self.frames:
            return self.reads or self.wchan
        nearest = next((frame for frame in self.frames if frame.own), self.frames[0])
        return f"{self.frames[0].function} ({nearest.place})"


@dataclass(frozen=True)
class JobStacks:
    """What a job's ranks do, those ranks that have ended, and the nodes that gave no answer, each with the reason."""

    id: str
    ranks: tuple[RankStack, ...]
    ended: tuple[str, ...]
    silent: dict[str, str]

    def groups(self) -> list[list[RankStack]]:
        """Return the ranks in groups that do the same, the smallest first: the odd one says why the others wait."""
        found: dict[object, list[RankStack]] = {}
        for one in self.ranks:
            found.setdefault(one.key, []).append(one)
        return sorted(found.values(), key=len)


def take(cluster: ClusterAccess, reference: str | None, rank: str | None = None) -> JobStacks:
    """Return what the ranks of a job do now, or only this rank. Raises JobError, ClusterError."""
    tools = f"{cluster.shared}/{toolbox.TOOLS}"
    silence: SharedSilent | None = None
    with waiting("the ranks' stacks"):
        try:
            job_id = open_job(cluster, reference).id
            command = toolbox.command(cluster.shared, "stacks", job_id, tools, f"{_ANSWER_WITHIN_S:g}")
            done = toolbox.run(cluster.remote(), cluster.shared, command, timeout_s=_TIMEOUT_S, check=False)
        except SharedSilent as error:
            silence, job_id = error, reference or ""
            arguments = ("stacks", job_id, tools, f"{_ANSWER_WITHIN_S:g}")
            done = toolbox.run_sent(cluster.remote(), *arguments, timeout_s=_TIMEOUT_S)
    said = error_tail(done.stderr.decode(errors="replace"))
    if done.status == NO_RUNNER:
        why = f"{silence.message}, and {said}" if silence else f"job {job_id} has no running process"
        raise JobError(why, "`phalanx jobs` shows its state." if not silence else silence.hint, code="not-running")
    if done.status != 0:
        raise JobError(f"the head gave no answer: {said or f'exit code {done.status}'}", code="no-answer")
    lines = [line for line in done.stdout.splitlines() if line.startswith(b"{")]
    return _only(_checked(job_id, [head_answers.parsed(line) for line in lines]), rank)


def _checked(job_id: str, answers: Sequence[dict[str, Any]]) -> JobStacks:
    if not answers:
        raise head_answers.InvalidAnswerError("nothing")
    first = head_answers.required(answers[0], _JOB)
    nodes = [head_answers.required(answer, _NODE) for answer in answers[1:]]
    silent = dict.fromkeys(first["asked"], f"no answer within {_ANSWER_WITHIN_S:g} s")
    for node in nodes:
        silent.pop(node["node"], None)
        if not node["processes"] and node["tool"]:
            silent[node["node"]] = node["tool"]
    why = f"{first['problem']}; " if first["problem"] else ""
    ranks = [
        RankStack(node=node["node"], **{**found, "why": found["why"] and f"{why}{found['why']}"})
        for node in nodes
        for found in node["processes"]
    ]
    return JobStacks(job_id, tuple(sorted(ranks, key=lambda one: by_number(one.rank))), first["ended"], silent)


def _only(stacks: JobStacks, rank: str | None) -> JobStacks:
    """Return the stacks of one rank only. Raises JobError if the job has no such rank."""
    if rank is None:
        return stacks
    chosen = tuple(one for one in stacks.ranks if one.rank == rank)
    ended = tuple(name for name in stacks.ended if name == rank)
    if not chosen and not ended and not stacks.silent:
        raise JobError(f"job {stacks.id} has no process '{rank}'", f"It has {named(stacks.ranks)}.", code="no-process")
    return JobStacks(stacks.id, chosen, ended, {} if chosen or ended else stacks.silent)


def by_number(name: str) -> tuple[str, int, str]:
    """Return a key that sorts ranks by their numbers, each role by itself."""
    role, _, number = name.rpartition(" ")
    return (role, int(number), "") if number.isdecimal() and len(number) < 10 else (name, 0, "")


def named(ranks: Sequence[RankStack] | Sequence[str]) -> str:
    """Name ranks: "rank 3", "ranks 0-2 and 4", "server 0"."""
    names = [one if isinstance(one, str) else one.rank for one in ranks]
    numbers = sorted(int(name) for name in names if name.isdecimal() and len(name) < 10)
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    parts = ["-".join(map(str, span)) for span in spans]
    label = [f"rank{'s' * (len(numbers) > 1)} {', '.join(parts)}"] if parts else []
    others = Counter(name for name in names if not (name.isdecimal() and len(name) < 10))
    return ", ".join([*label, *others]) or "none"


def _line(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise Invalid(f"{value!r:.60} is not a short text")
    return head_answers.text(value)


def _frame(value: Any) -> Frame:
    if not isinstance(value, list) or len(value) != 4:
        raise Invalid(f"{value!r:.60} is not a frame")
    return Frame(_line(value[0]), _line(value[1]), head_answers.whole(value[2]), truth(value[3]))


def _thread(value: Any) -> Thread:
    return Thread(**head_answers.required(head_answers.record(value), _THREAD))


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST_CPU_S:
        raise Invalid(f"{value!r:.60} is not a number of seconds")
    return value


def _process(value: Any) -> dict[str, Any]:
    found = head_answers.record(value)
    optional = head_answers.fields(found, _MAYBE)
    return {"why": "", **head_answers.required(found, _PROCESS), **optional}


_THREAD: dict[str, head_answers.Check] = {"name": _line, "frames": head_answers.list_of(_frame, _MOST_FRAMES)}
_PROCESS: dict[str, head_answers.Check] = {
    "rank": _line,
    "pid": head_answers.whole,
    "threads": head_answers.list_of(_thread, _MOST_THREADS),
}
_MAYBE: dict[str, head_answers.Check] = {
    **dict.fromkeys(("name", "wchan", "reads", "why"), _line),
    "state": head_answers.matching("[A-Za-z]"),
    "cpu_s": _seconds,
}
_JOB: dict[str, head_answers.Check] = {
    "asked": head_answers.list_of(_line),
    "ended": head_answers.list_of(_line),
    "problem": head_answers.text,
}
_NODE: dict[str, head_answers.Check] = {
    "node": _line,
    "tool": _line,
    "processes": head_answers.list_of(_process, _MOST_PROCESSES),
}
