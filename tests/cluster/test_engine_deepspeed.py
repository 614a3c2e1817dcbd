"""DeepSpeed on a real cluster: ZeRO stage 1 over two nodes, without ssh between its launchers."""

from __future__ import annotations

import re

import pytest
from terminals import ONE_THREAD
from verdicts import is_proven

pytestmark = pytest.mark.cluster

FIRST_USE_S = 900


@pytest.mark.long  # test_frameworks.py has what is started; this installs DeepSpeed and trains
def test_two_ranks_share_the_optimizer(engines):
    example = engines.with_example("deepspeed_fashion_mnist")
    arguments = (*ONE_THREAD, "--launcher", "deepspeed", "-n", "2", "-N", "1", "--", "python", "train.py")
    much = ("--images", "2000", "--batch-size", "16", "--epochs", "1", "--out", "/efs/deepspeed")
    trained = example.phalanx("run", "--recipe", "deepspeed", *arguments, *much, timeout_s=FIRST_USE_S)
    shares = re.findall(r"^\[(\d)\] rank (\d) of 2 optimizes 51,510 of 103,018 weights", trained.stdout, re.M)
    assert sorted(shares) == [(n, n) for n in "01"]
    assert is_proven(trained.stderr, 4)
    arguments = (*ONE_THREAD, "--launcher", "exec", "-n", "1", "--", "python", "evaluate.py", "/efs/deepspeed")
    evaluated = example.phalanx("run", "--recipe", "deepspeed", *arguments, "--at-least", "0.65", timeout_s=FIRST_USE_S)
    assert re.search(r"test accuracy 0\.[678]\d+ on 10,000 images", evaluated.stdout)
