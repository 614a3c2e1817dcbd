"""JAX on a real cluster: a data-parallel training over two processes, which find each other without arguments."""

from __future__ import annotations

import re

import pytest
from verdicts import is_proven

pytestmark = pytest.mark.cluster

FIRST_USE_S = 900


@pytest.mark.long  # test_frameworks.py has what is started; this installs JAX and trains
def test_two_processes_train_one_network(engines):
    example = engines.with_example("jax_fashion_mnist")
    program = ("python", "train.py", "--epochs", "1", "--images", "12000")
    arguments = ("--name", "jax", "--checkpoint", "jax", "--launcher", "jax", "-n", "2", "-N", "1", "--", *program)
    trained = example.phalanx("run", "--recipe", "jax", *arguments, timeout_s=FIRST_USE_S)
    assert sorted(re.findall(r"^\[(\d)\] process (\d) of 2", trained.stdout, re.M)) == [(n, n) for n in "01"]
    assert is_proven(trained.stderr, 4)
    program = ("python", "evaluate.py", "/efs/jax/weights.npz", "--at-least", "0.8")
    arguments = ("--launcher", "exec", "-n", "1", "--", *program)
    evaluated = example.phalanx("run", "--recipe", "jax", *arguments, timeout_s=FIRST_USE_S)
    assert re.search(r"test accuracy 0\.8\d+ on 10,000 images", evaluated.stdout)
    longer = ("python", "train.py", "--epochs", "2", "--images", "12000")
    resumed = example.phalanx("run", "--resume", "jax", "--", *longer, timeout_s=FIRST_USE_S)
    assert re.findall(r"epoch (\d): loss", resumed.stdout) == ["2"]
