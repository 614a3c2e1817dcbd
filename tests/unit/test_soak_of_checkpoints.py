"""The judge of `make soak PART=checkpoints`: what a restart may train again."""

from __future__ import annotations

import pytest
from benchmarks.checkpoints import EXAMPLES, judge

TORCH, TENSORFLOW = EXAMPLES[0], EXAMPLES[2]


def torch(*epochs: int) -> str:
    return "".join(f"[0] {epoch}  0.5 0.8\n" for epoch in epochs)


def tensorflow(*epochs: int) -> str:
    return "".join(f"[worker 0] Epoch {epoch}/{TENSORFLOW.epochs}\n" for epoch in epochs)


@pytest.mark.parametrize(
    ("attempts", "lost", "problems"),
    [
        ([range(1, 31)], 0, []),
        ([range(1, 11), range(10, 31)], 0, []),
        ([range(1, 11), [], range(10, 31)], 0, []),
        # Killed after the last epoch was saved.
        ([range(1, 31), []], 0, []),
        ([range(1, 11), range(9, 31)], 1, ["a restart trained 1 finished epochs again"]),
        ([range(1, 30), []], 0, ["it finished 29 of 30 epochs"]),
    ],
)
def test_of_epochs_that_are_shown_when_they_begin(attempts, lost, problems):
    assert judge(TENSORFLOW, [tensorflow(*one) for one in attempts]) == (lost, problems)


@pytest.mark.parametrize(
    ("attempts", "lost", "problems"),
    [
        ([[1, 2, 3], [1, 2, 3, *range(4, 13)]], 0, []),
        ([range(1, 6), range(4, 13)], 0, []),
        ([range(1, 6)], 0, ["it finished 5 of 12 epochs"]),
    ],
)
def test_of_epochs_that_are_shown_when_they_have_ended(attempts, lost, problems):
    assert judge(TORCH, [torch(*one) for one in attempts]) == (lost, problems)
