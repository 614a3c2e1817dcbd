"""The examples, shortened, as jobs on a real cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import EXAMPLES, ONE_THREAD

pytestmark = pytest.mark.cluster
GETTING_STARTED = EXAMPLES.parent / "docs" / "getting-started.md"


def test_hello_mpi_runs_on_every_node(cluster):
    job = cluster.phalanx(
        *("run", "--directory", str(EXAMPLES / "hello_mpi"), "--launcher", "mpi", "-n", "8", "-N", "2"),
        *("--", "python", "hello.py"),
    )
    assert job.stdout.count("hello from rank") == 8
    assert "the sum of 1…8 over all ranks is 36" in job.stdout


@pytest.mark.skipif(not Path("/usr/share/datasets/fashion-mnist").exists(), reason="needs dataset-fashion-mnist")
def test_fashion_mnist_trains_checkpoints_and_passes_its_evaluation(cluster):
    code = ("run", "--directory", str(EXAMPLES / "fashion_mnist"))
    training = cluster.phalanx(
        *(*code, *ONE_THREAD, "--launcher", "torchrun", "-n", "2", "-N", "1"),
        *("--", "train.py", "--epochs", "1", "--out", "/efs/fashion_mnist"),
        timeout_s=300,
    )
    assert "[0] 2 processes, 55,000 training images" in training.stdout
    assert "validation/main/accuracy" in training.stdout
    evaluation = cluster.phalanx(
        *(*code, *ONE_THREAD, "--launcher", "exec", "-n", "1"),
        *("--", "python", "evaluate.py", "/efs/fashion_mnist/checkpoint.pt", "--at-least", "0.8"),
    )
    assert "test accuracy 0.8" in evaluation.stdout


def test_the_first_program_of_getting_started_runs_as_written(cluster, tmp_path):
    page = GETTING_STARTED.read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"^\$ phalanx (run .*hello\.py)$", page, re.MULTILINE)
    (tmp_path / "hello.py").write_text(program)
    job = cluster.phalanx("run", "--directory", str(tmp_path), *command.split()[1:])
    assert sorted(re.findall(r"rank \d of \d", job.stdout)) == [f"rank {rank} of 4" for rank in range(4)]
