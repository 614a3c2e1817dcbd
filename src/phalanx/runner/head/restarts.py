"""Decides whether a failed job is restarted: a pure function of its attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from phalanx.runner.files.job_status import Attempt

if TYPE_CHECKING:
    from typing import List, Sequence

AT_ONCE_S = 5.0


class Decision(NamedTuple):
    """Whether to restart, or why not ("" where no reason need be given)."""

    restart: bool
    reason: str = ""


def decide(attempts: Sequence[Attempt], restarts: int, restart_on: Sequence[int] = ()) -> Decision:
    """Decide whether to make another attempt, after these failed and with `restarts` allowed in all.

    With `restart_on`, an attempt that its program ended must have ended with one of these exit codes.
    """
    last, used = attempts[-1], len(attempts) - 1
    if not restarts or (last.ran_s is None and not last.died):
        return Decision(False)
    if last.gave_up:
        return Decision(False, "its engine had restarted it as often as allowed")
    if used >= restarts:
        return Decision(False, f"after {used} restart{'s' if used > 1 else ''}, the number allowed")
    if restart_on and not last.died and last.exit_code not in restart_on:
        listed = ", ".join(map(str, restart_on))
        return Decision(False, f"exit code {last.exit_code}, and it is restarted only after {listed}")
    if len(attempts) > 1 and _same_at_once(attempts[-2], last):
        return Decision(
            False,
            f"the same failure twice within {AT_ONCE_S:g} s of its start, "
            f"so it is not restarted ({used} of {restarts})",
        )
    return Decision(True)


def with_lost(attempts: Sequence[Attempt], message: str, position: int = 0) -> List[Attempt]:
    """Return these attempts, the last of which died with its runner.

    If none was running, one without ranks is added, with its output from `position`. It counts, so that a job that
    kills its runner during preparation is not restarted for ever.
    """
    before = list(attempts) if not attempts or attempts[-1].is_over else list(attempts[:-1])
    last = attempts[len(before)] if len(before) < len(attempts) else Attempt(position)
    return [*before, last._replace(message=message, died=True)]


def _same_at_once(one: Attempt, other: Attempt) -> bool:
    at_once = all(not each.died and each.lived_s is not None and each.lived_s <= AT_ONCE_S for each in (one, other))
    return at_once and one.exit_code == other.exit_code
