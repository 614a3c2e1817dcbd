"""ChainerMN's training of MNIST on three nodes: its table, and 0.97 on the test set."""

from __future__ import annotations

import re

import pytest

from conftest import ONE_THREAD

pytestmark = pytest.mark.cluster

FIRST_USE_S = 900


def test_the_training_prints_chainermns_table_and_reaches_0_97(engines):
    example = engines.with_example("chainermn_mnist")
    words = ("--recipe", "chainermn", *ONE_THREAD, "-n", "3", "-N", "1", "--", "python", "train_mnist.py")
    done = example.phalanx("run", *words, "-e", "6", "-u", "100", "--at-least", "0.97", timeout_s=FIRST_USE_S)
    said = [line.replace("\x1b[J", "") for line in re.findall(r"^\[0\] (.*)$", done.stdout, re.MULTILINE)]
    assert said[:8] == [
        "==========================================",
        "Num process (COMM_WORLD): 3",
        "Using naive communicator",
        "Num unit: 100",
        "Num Minibatch-size: 100",
        "Num epoch: 6",
        "==========================================",
        "epoch       main/loss   validation/main/loss  main/accuracy  validation/main/accuracy  elapsed_time",
    ]
    accuracies = [float(row.split()[4]) for row in said if re.match(r"[1-6] ", row)]
    assert len(accuracies) == 6
    assert accuracies[-1] >= 0.97
    assert "no process of it is left on 4 nodes" in done.stderr
