"""Networks split over two nodes: with PyTorch's tensor parallelism, and one that a node has no room for, with FSDP."""

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


RUN = ("run", "--no-requirements", *ONE_THREAD, "--launcher", "torchrun", "-N", "1")


@pytest.mark.long  # the next one shares a network, too
def test_a_language_model_that_one_node_has_no_room_for_trains_on_two(engines):
    example = engines.with_example("language_model")
    large = ("--", "train.py", "--width", "1024", "--layers", "4", "--steps", "1", "--batch-size", "1")
    alone = example.phalanx(*RUN, "-n", "1", *large, "--room-mib", "900", timeout_s=600, check=False)
    assert alone.returncode and "allocate memory" in alone.stdout + alone.stderr
    together = example.phalanx(*RUN, "-n", "2", *large, "--room-mib", "900", timeout_s=600).stdout
    shares = [
        int(share.replace(",", "")) for share in re.findall(r"rank \d holds ([\d,]+) of 5\d,\d{3},\d{3}", together)
    ]
    assert len(shares) == 2 and max(shares) < 26_500_000


@pytest.mark.long  # test_examples.py writes such a checkpoint, by the program of a page
def test_a_language_model_that_two_nodes_trained_is_fine_tuned_on_one(engines):
    example = engines.with_example("language_model")
    small = ("--", "train.py", "--width", "64", "--steps", "30")
    example.phalanx(*RUN, "-n", "2", "--checkpoint", "base", *small, timeout_s=600)
    licence = ("--start", "/efs/base", "--text", "/usr/share/common-licenses/GPL-3")
    tuned = example.phalanx(*RUN, "-n", "1", "--checkpoint", "tuned", *small, *licence, timeout_s=600).stdout
    ((before, after),) = re.findall(r"held-back loss ([\d.]+) before, ([\d.]+) after 30 steps", tuned)
    assert float(after) < float(before) < 5


WAIT = """
import time, torch.distributed as dist

dist.init_process_group("gloo")
print("ready", flush=True)
if dist.get_rank() == 1:
    time.sleep(4711)
dist.barrier()
"""


def test_the_rank_of_torchrun_for_which_the_others_wait_is_named(engines):
    (engines.directory / "late.py").write_text(WAIT)
    arguments = ("--no-requirements", *ONE_THREAD, "--launcher", "torchrun", "-n", "3", "-N", "3", "--", "late.py")
    job = engines.phalanx("run", "--detach", *arguments).stdout.strip()
    engines.wait_until_printed(job, "ready", times=3)
    shown = engines.phalanx("stacks", job).stdout.splitlines()
    engines.phalanx("stop", job)
    assert shown[0] == "rank 1 waits in <module> (late.py:7)"
    assert shown[1].startswith("ranks 0, 2 ") and shown[1].endswith(" in barrier (late.py:8)"), shown
