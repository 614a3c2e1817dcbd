"""The interface of batch schedulers: request an allocation, query it, and give it back."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid, reason
from phalanx.runner import checked
from phalanx.runner.files.schema import allocation_id
from phalanx.runner.login import quoted
from phalanx.runner.names import RUNNER
from phalanx.runner.process import RefusedError

if TYPE_CHECKING:
    from typing import Callable, List, Mapping, Optional, Protocol, Sequence, Tuple

    # argv and its stdin → its stdout; RefusedError with the command's message when it fails
    Call = Callable[[Sequence[str], str], str]

    class Scheduler(Protocol):
        """A module of `phalanx.schedulers`. It chooses the text of an allocation's id; `shown` shortens it for users.

        It runs the command of `Request.attend` on each node that it grants. HIDDEN are the prefixes of variables that
        it sets for its jobs: they are removed, because engines that see them would use the scheduler themselves. Those
        in SHOWN stay. NODE_INDEX is the variable with the node's number in the allocation, "" where each node gets its
        own count. GPUS are the variables that list the node's granted GPUs; the first one that is set counts.
        """

        NAME: str
        SUMMARY: str
        HIDDEN: Tuple[str, ...]
        SHOWN: Tuple[str, ...]
        NODE_INDEX: str
        GPUS: Tuple[str, ...]

        def submit(self, request: Request, call: Call) -> str: ...
        def status(self, allocation: str, call: Call) -> AllocationStatus: ...
        def cancel(self, allocation: str, call: Call) -> None: ...


QUEUED = "queued"
HELD = "held"
ENDED = "ended"

# qstat lists all jobs of a user, with 600 bytes for each.
MOST_BYTES = 16 << 20
"""The longest answer of a scheduler."""
_SHOWN_CHARACTERS = 200
# The values with which Slurm and CUDA mean no GPU.
_NO_GPU = ("NoDevFiles", "-1", "none")


@dataclass(frozen=True)
class AllocationStatus:
    """An allocation's status: its `phase`, and `description`, the scheduler's own words.

    For one that has ended: whether it was `killed` (cancelled, out of time, preempted …), and whether a new one may
    succeed (`retryable`).
    """

    phase: str
    description: str = ""
    killed: bool = False
    retryable: bool = False


@dataclass(frozen=True)
class Request:
    """What a job needs: `processes` in all, `per_node` on each of `nodes` nodes, or (`anywhere`) placed freely.

    After `limit_s` seconds the scheduler may end the job (0: without end), which phalanx has done before.
    `options` are arguments for the scheduler's own command, passed on as they are.
    """

    job: str
    directory: str
    scheduler: str
    processes: int
    nodes: int
    per_node: int
    anywhere: bool = False
    limit_s: int = 0
    options: Tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The allocation's name in the scheduler's own lists."""
        return f"phalanx-{self.job}"

    @property
    def log(self) -> str:
        """The path of the log for the output of the scheduler and its scripts."""
        return f"{self.directory}/{self.scheduler}.out"

    def attend(self, allocation: str, nodes: str, places: str) -> str:
        """Return a shell command that starts the job's starter on a node; the arguments are shell code themselves."""
        argv = checked.argv(f"{self.directory}/{RUNNER}", "attend", self.scheduler, self.directory)
        return f"{' '.join(map(quoted, argv))} {allocation} {nodes} {places}"


def shown(allocation: str) -> str:
    """Return an allocation's id as users know it."""
    return allocation.rpartition("/")[2]


def checked_id(scheduler: str, answer: str) -> str:
    """Return the id in the last line of a scheduler's answer, after what a site prints. Raises RefusedError."""
    last = answer.strip().rpartition("\n")[2]
    try:
        return allocation_id(last)
    except Invalid:
        raise RefusedError(
            f"{scheduler}'s answer is no id of a job: '{reason(last)[:_SHOWN_CHARACTERS]}'\n"
            "What it may hold for the job nevertheless ends when it begins.",
            code="scheduler",
        ) from None


def count_here(places: str, index: int) -> int:
    """Return the processes on the node with this index: in "2(x3),1" node 2 has 2, node 3 has 1. "2" applies to all.

    Raises ValueError.
    """
    counts = []
    for part in places.split(","):
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return counts[index] if len(counts) > 1 else counts[0]


def granted_gpus(found: Mapping[str, str], names: Sequence[str]) -> Optional[List[str]]:
    """Return this node's GPUs for the job, as in CUDA_VISIBLE_DEVICES; None: no variable is set."""
    text = next((found[name] for name in names if name in found), None)
    if text is None:
        return None
    words = (word for word in text.replace(",", " ").split() if word not in _NO_GPU)
    # "gpu1" or "1" is a number; "GPU-1f3…", "MIG-…" a name of its own.
    return [word if "-" in word else word.lstrip(string.ascii_letters) for word in words]


def still_holds(scheduler: str, allocation: str, error: Exception) -> str:
    """Return a message about an allocation that could not be given back."""
    return f"{scheduler} may still hold {shown(allocation)}: {error}"
