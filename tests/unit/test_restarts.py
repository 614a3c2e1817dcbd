"""When a job is restarted, and when that would be useless."""

from __future__ import annotations

import json

import pytest

from phalanx.runner.files.job_status import Attempt
from phalanx.runner.head.restarts import Decision, decide, with_lost


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


def test_it_is_tried_again_after_the_exit_codes_that_are_named_and_after_a_lost_node():
    assert decide([failed(75)], 1, (75, 137)).restart
    assert decide([failed(1, died=True)], 1, (75, 137)).restart
    assert decide([failed(1)], 1, (75, 137)) == Decision(False, "exit code 1, and it is restarted only after 75, 137")


@pytest.mark.parametrize(
    ("attempts", "restarts", "reason"),
    [
        ([failed()], 0, ""),
        ([failed(127, None, None)], 3, ""),
        ([failed(), failed()], 1, "after 1 restart, the number allowed"),
        ([failed(), failed(), failed()], 2, "after 2 restarts, the number allowed"),
        (
            [failed(2, 1), failed(2, 5)],
            3,
            "the same failure twice within 5 s of its start, so it is not restarted (1 of 3)",
        ),
        ([failed(gave_up=True)], 3, "its engine had restarted it as often as allowed"),
    ],
    ids=["none allowed", "nothing was started", "one used up", "two used up", "same at once", "engine gave up"],
)
def test_it_is_not_tried_again_and_says_why(attempts, restarts, reason):
    assert decide(attempts, restarts) == Decision(False, reason)


def test_the_attempt_under_way_dies_with_its_runner():
    *earlier, lost = with_lost([failed(2), failed(1), Attempt(3)], "the head is gone", position=7)
    assert earlier == [failed(2), failed(1)]
    assert lost == Attempt(3, "the head is gone", died=True)


@pytest.mark.parametrize("before", [[], [failed()]], ids=["none was begun", "the last one was over"])
def test_a_runner_that_died_between_attempts_took_one_without_a_rank(before):
    *earlier, lost = with_lost(before, "the head is gone", position=7)
    assert earlier == before
    assert lost == Attempt(7, "the head is gone", died=True)


def test_what_kills_runners_while_they_prepare_does_not_do_so_for_ever():
    attempts: list[Attempt] = []
    for _ in range(3):
        attempts = with_lost(attempts, "the runner died")
    assert not decide(attempts, 2).restart


def test_without_a_position_the_lost_attempt_has_all_of_the_output():
    assert with_lost([], "the runner died") == [Attempt(0, "the runner died", died=True)]


def test_an_attempt_is_read_back_as_it_was_written():
    attempt = failed(137, 2.5, 8.0, died=True, gave_up=True)
    assert Attempt(**json.loads(json.dumps(attempt._asdict()))) == attempt
