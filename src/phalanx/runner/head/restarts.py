"""Whether a job that failed is started again: a pure function of how its attempts went."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, List, Optional, Sequence

AT_ONCE_S = 5.0


@dataclass(frozen=True)
class Attempt:
    """How one attempt went.

    position   where its output begins in the index
    exit_code  as the job's own would be; None when it was lost with its runner
    ran_s      seconds from the start of its processes to its end; None when none was started
    lived_s    seconds that the process had lived that failed first: an engine takes its time before and after its ranks
    died       what ended it from outside (a node, the runner): the same program may well do better elsewhere
    gave_up    its engine has restarted the ranks as often as it was allowed to
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
        """Was its end written down? Whatever is no success says why."""
        return bool(self.message)

    def to_json(self) -> Dict[str, Any]:
        """For state.json."""
        return asdict(self)


@dataclass(frozen=True)
class Decision:
    """`again`, or why not ("" where that needs no words)."""

    again: bool
    reason: str = ""


def decide(attempts: Sequence[Attempt], restarts: int) -> Decision:
    """Shall there be another attempt, after these failed and with `restarts` allowed in all?"""
    last, used = attempts[-1], len(attempts) - 1
    if not restarts or (last.ran_s is None and not last.died):
        return Decision(False)
    if last.gave_up:
        return Decision(False, "its engine had restarted it as often as it may")
    if used >= restarts:
        return Decision(False, f"after {used} restart{'s' if used > 1 else ''}, as many as were allowed")
    if len(attempts) > 1 and _same_at_once(attempts[-2], last):
        return Decision(
            False,
            f"twice the same within {AT_ONCE_S:g} s of its start, so it is not tried again ({used} of {restarts})",
        )
    return Decision(True)


def with_lost(attempts: Sequence[Attempt], message: str, position: int = 0) -> List[Attempt]:
    """These, and last the one that died with its runner.

    Where none was under way that is one of its own, without a rank, whose output begins at `position`: what kills
    runners while they prepare must not do so for ever.
    """
    before = list(attempts) if not attempts or attempts[-1].is_over else list(attempts[:-1])
    last = attempts[len(before)] if len(before) < len(attempts) else Attempt(position)
    return [*before, replace(last, message=message, died=True)]


def _same_at_once(one: Attempt, other: Attempt) -> bool:
    at_once = all(not each.died and each.lived_s is not None and each.lived_s <= AT_ONCE_S for each in (one, other))
    return at_once and one.exit_code == other.exit_code
