"""What the ranks of a job do, as nodes report it: checked, grouped by equal stacks, and said in words.

The head and the user's machine read the same lines of JSON: one about the job, then one for each node. Their texts come
from the job's processes.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from phalanx.node.validate import Invalid, fields, truth
from phalanx.runner.files.schema import large, number, text, tuple_of
from phalanx.runner.names import STATES

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple, Union

    from phalanx.runner.files.schema import Check

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
    frames: Tuple[Frame, ...]


@dataclass(frozen=True)
class RankStack:
    """What one rank does. Everything but `rank` and `node` is as the rank's node says, which the job can forge.

    `state` is the kernel's letter, `wchan` where in the kernel it sleeps, `switches` how often its main thread has
    begun to wait, `reads` the file that it waits to read from ("": none), `why` the reason why there are no `threads`,
    of which the first is the main one.
    """

    rank: str
    node: str
    pid: int
    name: str = ""
    state: str = "R"
    wchan: str = ""
    cpu_s: float = 0.0
    switches: int = 0
    reads: str = ""
    why: str = ""
    threads: Tuple[Thread, ...] = ()

    @property
    def frames(self) -> Tuple[Frame, ...]:
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
    """What a job's ranks do, those ranks that have ended, and the nodes that gave no answer, each with the reason.

    Of stacks that were saved, `saved_at` is when (seconds since 1970), and `occasion` why.
    """

    id: str
    ranks: Tuple[RankStack, ...]
    ended: Tuple[str, ...]
    silent: Dict[str, str]
    saved_at: float = 0.0
    occasion: str = ""

    def groups(self) -> List[List[RankStack]]:
        """Return the ranks in groups that do the same, the smallest first: the odd one says why the others wait."""
        found: Dict[object, List[RankStack]] = {}
        for one in self.ranks:
            found.setdefault(one.key, []).append(one)
        return sorted(found.values(), key=len)


def by_number(name: str) -> Tuple[str, int, str]:
    """Return a key that sorts ranks by their numbers, each role by itself."""
    role, _, number = name.rpartition(" ")
    return (role, int(number), "") if number.isdecimal() and len(number) < 10 else (name, 0, "")


def named(ranks: Union[Sequence[RankStack], Sequence[str]]) -> str:
    """Name ranks: "rank 3", "ranks 0-2 and 4", "server 0"."""
    names = [one if isinstance(one, str) else one.rank for one in ranks]
    numbers = sorted(int(name) for name in names if name.isdecimal() and len(name) < 10)
    spans: List[List[int]] = []
    for rank in numbers:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    parts = ["-".join(map(str, span)) for span in spans]
    label = [f"rank{'s' * (len(numbers) > 1)} {', '.join(parts)}"] if parts else []
    others = Counter(name for name in names if not (name.isdecimal() and len(name) < 10))
    return ", ".join([*label, *others]) or "none"


def report(job_id: str, answers: Sequence[Any], within_s: float) -> JobStacks:
    """Return what answers say: the first is about the job, the others come from nodes. Raises Invalid."""
    if not answers:
        raise Invalid("nothing was reported")
    first, nodes = fields(_JOB, _with(answers[0], _NOT_SAVED)), [fields(_NODE, answer) for answer in answers[1:]]
    silent = dict.fromkeys(first["asked"], f"no answer within {within_s:g} s")
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
    ordered = tuple(sorted(ranks, key=lambda one: by_number(one.rank)))
    return JobStacks(job_id, ordered, first["ended"], silent, first["at"], first["occasion"])


def summary(found: JobStacks, groups: List[List[RankStack]]) -> Iterator[str]:
    """Yield a line for each group: who is where."""
    if found.ended:
        yield f"{named(found.ended)} {'has' if len(found.ended) == 1 else 'have'} ended"
    for group in groups:
        first, place = group[0], group[0].place
        verb = first.does if len(group) == 1 else _PLURAL.get(first.does, first.does)
        yield f"{named(group)} {verb}{f' in {place}' if place else ''}"


_PLURAL = {
    "runs": "run",
    "waits": "wait",
    "hangs in the kernel": "hang in the kernel",
    "is stopped by a signal": "are stopped by a signal",
    "is stopped by a debugger": "are stopped by a debugger",
    "has ended": "have ended",
}


def _with(value: Any, others: Mapping[str, Any]) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise Invalid(f"{value!r:.60} is not an object")
    return {**others, **value}


def _line(value: Any) -> str:
    if len(text(value)) > _LONGEST:
        raise Invalid(f"{value!r:.60} is not a short text")
    # A lone surrogate can't be encoded, except those by which Python represents a byte of a file name.
    return re.sub("[\ud800-\udc7f\udd00-\udfff]", "\ufffd", value)


def _said(value: Any) -> str:
    return _line(text(value)[:_LONGEST])


def _state(value: Any) -> str:
    if not re.fullmatch("[A-Za-z]", text(value)):
        raise Invalid(f"{value!r:.60} is no state")
    return value


def _frame(value: Any) -> Frame:
    if not isinstance(value, list) or len(value) != 4:
        raise Invalid(f"{value!r:.60} is not a frame")
    return Frame(_line(value[0]), _line(value[1]), large(value[2]), truth(value[3]))


def _thread(value: Any) -> Thread:
    return Thread(**fields(_THREAD, value))


def _seconds(value: Any) -> float:
    if not 0 <= number(value) <= _MOST_CPU_S:
        raise Invalid(f"{value!r:.60} is not a number of seconds")
    return value


def _process(value: Any) -> Dict[str, Any]:
    return fields(_PROCESS, _with(value, _UNKNOWN))


def _few(check: Check, most: int) -> Check:
    """Return a check for a list of at most so many."""

    def checked(values: Any) -> Any:
        found = tuple_of(check)(values)
        if len(found) > most:
            raise Invalid(f"{len(found)} are too many")
        return found

    return checked


_THREAD: Dict[str, Check] = {"name": _line, "frames": _few(_frame, _MOST_FRAMES)}
_UNKNOWN = {"name": "", "wchan": "", "reads": "", "why": "", "state": "R", "cpu_s": 0.0, "switches": 0}
_PROCESS: Dict[str, Check] = {
    **dict.fromkeys(("rank", "name", "wchan", "reads", "why"), _line),
    "pid": large,
    "threads": _few(_thread, _MOST_THREADS),
    "state": _state,
    "cpu_s": _seconds,
    "switches": large,
}
_NOT_SAVED = {"problem": "", "at": 0.0, "occasion": ""}
_JOB: Dict[str, Check] = {
    "asked": tuple_of(_line),
    "ended": tuple_of(_line),
    "problem": _said,
    "at": _seconds,
    "occasion": _line,
}
_NODE: Dict[str, Check] = {"node": _line, "tool": _line, "processes": _few(_process, _MOST_PROCESSES)}
