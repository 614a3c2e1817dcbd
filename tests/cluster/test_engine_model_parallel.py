"""One network split over two nodes with PyTorch's tensor parallelism."""

from __future__ import annotations

import re

import pytest
from terminals import ONE_THREAD

pytestmark = pytest.mark.cluster


def test_each_of_two_nodes_holds_half_of_the_network_that_learns(engines):
    example = engines.with_example("model_parallel")
    program = ("train.py", "--steps", "60")
    arguments = ("--no-requirements", *ONE_THREAD, "--launcher", "torchrun", "-n", "2", "-N", "1", "--", *program)
    done = example.phalanx("run", *arguments, "--at-least", "0.75", timeout_s=600)
    held = re.findall(r"rank (\d) holds 203,530 of 407,050 weights", done.stdout)
    assert sorted(held) == ["0", "1"]
    assert re.search(r"test accuracy 0\.[78]\d+ on 10,000 images", done.stdout)
