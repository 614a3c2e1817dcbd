"""The seeds' ChainerMN training of MNIST on four nodes: its table, and 0.97 on the test set."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from conftest import Terminal

pytestmark = pytest.mark.cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "chainermn_mnist"
FIRST_USE_S = 900


def test_the_training_prints_the_seeds_table_and_reaches_0_97(engines):
    directory = engines.state.parent / "chainermn"
    shutil.copytree(EXAMPLE, directory, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(engines.directory / "phalanx.yaml", directory)
    words = ("--recipe", "chainermn", "-N", "1", "--", "python", "train_mnist.py", "-e", "6", "-u", "300")
    done = Terminal(directory, engines.state).phalanx("run", *words, "--at-least", "0.97", timeout_s=FIRST_USE_S)
    said = re.sub(r"\x1b\[J", "", re.sub(r"^\[0\] ", "", done.stdout, flags=re.MULTILINE))
    assert said.startswith(
        "==========================================\n"
        "Num process (COMM_WORLD): 4\n"
        "Using naive communicator\n"
        "Num unit: 300\n"
        "Num Minibatch-size: 100\n"
        "Num epoch: 6\n"
        "==========================================\n"
        "epoch       main/loss   validation/main/loss  main/accuracy  validation/main/accuracy  elapsed_time\n"
    )
    accuracies = [float(row.split()[4]) for row in said.splitlines() if re.match(r"[1-6] ", row)]
    assert len(accuracies) == 6
    assert accuracies[-1] >= 0.97
    assert "no process of it is left on 4 nodes" in done.stderr
