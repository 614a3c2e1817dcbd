"""When a job is tried again, and when that would be no use."""

from __future__ import annotations

import pytest

from phalanx.node.runner.restarts import Attempt, Decision, decide


def failed(exit_code: int = 1, lived_s: float | None = 60.0, ran_s: float | None = 60.0, **more) -> Attempt:
    return Attempt(0, "rank 1 failed", exit_code, ran_s, lived_s, **more)


@pytest.mark.parametrize(
    ("attempts", "restarts"),
    [
        ([failed()], 1),
        ([failed(lived_s=1)], 1),
        ([failed(), failed()], 2),
        ([failed(2, 1), failed(3, 1)], 3),
        ([failed(2, 1), failed(2, 9)], 3),
        ([failed(died=True, lived_s=None, ran_s=None)], 1),
        ([failed(died=True, lived_s=1), failed(died=True, lived_s=1)], 3),
    ],
    ids=["late", "at once", "late twice", "other code", "later", "node lost before its start", "nodes lost at once"],
)
def test_it_is_tried_again(attempts, restarts):
    assert decide(attempts, restarts) == Decision(True)


@pytest.mark.parametrize(
    ("attempts", "restarts", "reason"),
    [
        ([failed()], 0, ""),
        ([failed(127, None, None)], 3, ""),
        ([failed(), failed()], 1, "after 1 restart, as many as were allowed"),
        ([failed(2, 1), failed(2, 4)], 3, "twice the same within 5 s of its start, so it is not tried again (1 of 3)"),
        ([failed(gave_up=True)], 3, "its engine had restarted it as often as it may"),
    ],
    ids=["none allowed", "nothing was started", "used up", "same at once", "engine gave up"],
)
def test_it_is_not_tried_again_and_says_why(attempts, restarts, reason):
    assert decide(attempts, restarts) == Decision(False, reason)
