"""`phalanx why`, with a cloud in memory: which of a stack's operations it speaks of, and how a quota stands."""

from __future__ import annotations

import json

import pytest
from fake_cloud import HEAD_FAILED, READY, STACK, UPDATED, event


def of_stack(number, *statuses):
    """The stack's own events."""
    return [event(number + later, "demo", status, STACK) for later, status in enumerate(statuses)]


def update_fails(number, reason):
    begun, failed = of_stack(number, "UPDATE_IN_PROGRESS"), event(number + 1, "HeadGroup", "UPDATE_FAILED", "", reason)
    return [*begun, failed, *of_stack(number + 2, "UPDATE_ROLLBACK_IN_PROGRESS")]


def update_is_taken_back(number, reason):
    back = of_stack(number + 3, "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS", "UPDATE_ROLLBACK_COMPLETE")
    return [*update_fails(number, reason), *back]


def deletion_fails(number, reason):
    left = event(number + 1, "Vpc", "DELETE_FAILED", "AWS::EC2::VPC", reason)
    return [*of_stack(number, "DELETE_IN_PROGRESS"), left, *of_stack(number + 2, "DELETE_FAILED")]


KEY, KIND, NEIGHBOUR = "The key pair 'mine' does not exist", "OptInRequired", "has dependencies and cannot be deleted"
CLEANED = [
    *UPDATED[:-1],
    event(24, "OldGroup", "DELETE_FAILED", "AWS::EC2::SecurityGroup", "resource sg-1 has a dependent object"),
    *of_stack(25, "UPDATE_COMPLETE"),
]
LIVES = {
    "created, and nothing else": ([READY], None),
    "updated": ([READY, UPDATED], None),
    "updated after an update that was taken back": ([READY, update_is_taken_back(7, KEY), UPDATED], None),
    "updated, and something old is left": ([READY, CLEANED], None),
    "being updated after an update that was taken back": (
        [READY, update_is_taken_back(7, KEY), of_stack(20, "UPDATE_IN_PROGRESS")],
        None,
    ),
    "an update that was taken back": ([READY, update_is_taken_back(7, KEY)], "key pair"),
    "two updates that were taken back": (
        [READY, update_is_taken_back(7, KEY), update_is_taken_back(20, KIND)],
        "Marketplace",
    ),
    "an update that can't be taken back": (
        [
            READY,
            update_fails(7, KEY),
            [event(10, "WorkersGroup", "UPDATE_FAILED", "", "Rate exceeded")],
            of_stack(11, "UPDATE_ROLLBACK_FAILED"),
        ],
        "key pair",
    ),
    "an update whose rollback somebody continues": (
        [
            READY,
            update_fails(7, KEY),
            of_stack(10, "UPDATE_ROLLBACK_FAILED", "UPDATE_ROLLBACK_IN_PROGRESS"),
        ],
        "key pair",
    ),
    "a creation that was rolled back": ([HEAD_FAILED], "not among the causes"),
    "a creation whose rollback failed": (
        [HEAD_FAILED[:-1], [event(6, "Vpc", "DELETE_FAILED", "", NEIGHBOUR)], of_stack(7, "ROLLBACK_FAILED")],
        "did not make is in the cluster's VPC",
    ),
    "a deletion that failed, of a good cluster": ([READY, deletion_fails(7, NEIGHBOUR)], "in the cluster's VPC"),
    "a deletion that failed, after an update did": (
        [READY, update_is_taken_back(7, KEY), deletion_fails(20, NEIGHBOUR)],
        "in the cluster's VPC",
    ),
    "a second deletion that failed": ([READY, deletion_fails(7, NEIGHBOUR), deletion_fails(20, KIND)], "Marketplace"),
    "the deletion of what could not be created": ([HEAD_FAILED, of_stack(7, "DELETE_IN_PROGRESS")], "not among"),
    "the deletion of a good cluster": ([READY, UPDATED, of_stack(20, "DELETE_IN_PROGRESS")], None),
}


@pytest.mark.parametrize("life", LIVES, ids=list(LIVES))
def test_why_speaks_of_the_stack_s_last_operation(phalanx, cloud, life):
    history, cause = LIVES[life]
    cloud.past(*history)
    cloud.logs = {}
    assert phalanx("why", "--json") == 0
    found = json.loads(phalanx.out)
    assert (found["cause"] is None) if cause is None else (cause in (found["cause"] or "")), found


def test_why_shows_what_stopped_a_rollback_beside_what_made_it_necessary(phalanx, cloud):
    cloud.past(*LIVES["an update that can't be taken back"][0])
    assert phalanx("why") == 0
    assert "the EC2 key pair does not exist" in phalanx.out
    assert "Rate exceeded" in phalanx.out
