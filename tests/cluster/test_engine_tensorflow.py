"""TensorFlow on a real cluster: three ways to train, one evaluation, TensorBoard, and the death of a worker."""

from __future__ import annotations

import gzip
import re
import time
from pathlib import Path

import numpy as np
import pytest

from conftest import Terminal

pytestmark = pytest.mark.cluster

FIRST_USE_S = 900
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
RUN = ("run", "--recipe", "tensorflow", "--launcher", "tensorflow", "-N", "1")
TRAIN = ("--", "python", "train.py", "--images", "3000", "--batch-size", "96", "--epochs", "2")
NODES = [f"deeplearning-worker{number}" for number in (1, 2, 3, 4)]


@pytest.fixture(scope="module")
def example(engines) -> Terminal:
    """A copy of the example."""
    return engines.with_example("tensorflow_fashion_mnist")


@pytest.fixture(scope="module")
def mirrored(example) -> str:
    done = example.phalanx(*RUN, "-n", "3", *TRAIN, "--out", "/efs/mirrored", timeout_s=FIRST_USE_S)
    assert "no process of it is left on 4 nodes" in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def served(example) -> str:
    done = example.phalanx(
        *RUN, "--ps", "1", "-n", "2", *TRAIN, "--epochs", "3", "--out", "/efs/served", timeout_s=FIRST_USE_S
    )
    assert "no process of it is left on 4 nodes" in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cifar10(example) -> str:
    """Fashion-MNIST's first images as files of CIFAR-10's binary version, on the shared directory."""
    directory = example.directory / "cifar10_data"
    directory.mkdir()
    for split, file, count in (("train", "data_batch_1.bin", 6000), ("t10k", "test_batch.bin", 1000)):
        images, labels = (
            np.frombuffer(gzip.decompress((FASHION_MNIST / f"{split}-{name}.gz").read_bytes()), np.uint8, offset=offset)
            for name, offset in (("images-idx3-ubyte", 16), ("labels-idx1-ubyte", 8))
        )
        framed = np.pad(images.reshape(-1, 1, 28, 28)[:count], ((0, 0), (0, 0), (2, 2), (2, 2)))
        planes = np.repeat(framed, 3, axis=1).reshape(count, -1)
        (directory / file).write_bytes(np.hstack((labels[:count, None], planes)).tobytes())
    example.phalanx("put", "cifar10_data")
    return "/efs/cifar10_data"


@pytest.fixture(scope="module")
def by_scripts(example, mirrored, cifar10) -> None:
    """Run TensorFlow 1's scripts on two hosts by plain ssh, until all their tasks have ended."""
    example.phalanx("put", ".", "tf")
    python = example.on("head", "ls -d /efs/.phalanx/environments/tensorflow-*/bin/python").split()[0]
    (example.directory / "hosts").write_text("\n".join(NODES[:2]) + "\n")
    options = {
        "--trainer_script_dir": "/efs/tf",
        "--training_script": "/efs/tf/train_flags.py",
        "--data_dir": cifar10,
        "--train_dir": "/efs/tf/train",
        "--log_dir": "/efs/tf/logs",
        "--max_steps": "300",
        "--python": python,
        "--workers_file_path": "hosts",
        "--worker_gpu_count": "1",
    }
    example.phalanx("tf-scripts", *(word for pair in options.items() for word in pair))
    example.phalanx("put", "hosts", "tf/hosts")
    # The loop from the 2018 documentation.
    loop = 'while read -u 10 host; do ssh $host "bash $EFS_MOUNT/tf/$host.sh" & done 10<$EFS_MOUNT/tf/hosts; wait'
    example.on("head", f"bash -lc '{loop}'")
    ended = "cat /efs/tf/logs/worker*.exit 2>/dev/null || true"
    wait_for(lambda: example.on("head", ended).split() == ["0", "0"], "two workers that ended well")


def wait_for(condition, what: str, limit_s: float = 900) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"after {limit_s} s there are not {what}"
        time.sleep(1)  # each poll takes a fifth of a second of CPU time


def test_mirrored_workers_train_as_one(mirrored):
    assert len(re.findall(r"^\[worker 0\] .*accuracy: 0\.\d+", mirrored, re.M)) == 2
    assert "[worker 0] checkpoint: /efs/mirrored/ckpt-2" in mirrored
    shown = re.findall(r"^\[worker (\d)\] worker (\d): 3 in step$", mirrored, re.M)
    assert sorted(shown) == [(number, number) for number in "012"]


def test_a_chief_trains_and_its_servers_are_ended(served):
    assert "[chief 0] checkpoint: /efs/served/ckpt-3" in served


def test_scripts_end_their_servers_when_all_workers_have(example, by_scripts):
    assert "worker 1 has finished" in example.on("head", "cat /efs/tf/logs/worker1")
    left = "pgrep -f [t]rain_flags.py || true"
    wait_for(lambda: not any(example.on(node, left).strip() for node in NODES[:2]), "no tasks left")


def test_a_separate_program_evaluates_all_and_tensorboard_reads_the_logs(
    example, mirrored, served, by_scripts, cifar10
):
    evaluate = "python evaluate.py --at-least 0.7"
    commands = (
        f"{evaluate} /efs/mirrored /efs/served",
        f"{evaluate} /efs/tf/train --data {cifar10}",
        "tensorboard --inspect --logdir /efs/mirrored/logs",
    )
    run = ("run", "--recipe", "tensorflow", "--launcher", "exec", "-n", "1")
    done = example.phalanx(*run, "--", "sh", "-c", " && ".join(commands), timeout_s=FIRST_USE_S)
    assert re.findall(r"(/\w+/\w+)\S*: test accuracy 0\.[789]", done.stdout) == [
        "/efs/mirrored",
        "/efs/served",
        "/efs/tf",
    ]
    assert re.search(r"Event statistics for /efs/mirrored/logs/train:(?s:.)*num_steps +2\b", done.stdout)


def test_a_worker_that_dies_ends_the_job_which_resumes_from_its_last_epoch(example, mirrored):
    program = ("python", "train.py", "--images", "960", "--batch-size", "96", "--epochs", "9999")
    example.phalanx(*RUN, "-n", "2", "--name", "dies", "--checkpoint", "dies", "--detach", "--", *program)
    example.wait_until_printed("dies", "Epoch 3/9999", timeout_s=900)
    example.on(NODES[1], "pkill -KILL -f [t]rain.py")
    job = example.phalanx("logs", "-f", "dies", check=False, timeout_s=FIRST_USE_S)
    assert job.returncode != 0
    assert "worker 1 on deeplearning-worker2 was ended by SIGKILL" in job.stderr
    assert "no process of it is left on 4 nodes" in job.stderr
    last = int(re.findall(r"Epoch (\d+)/", job.stdout)[-1])

    example.phalanx("run", "--resume", "dies", "--detach")
    example.wait_until_printed("dies", "Epoch ", timeout_s=900)
    again = int(re.findall(r"Epoch (\d+)/", example.phalanx("logs", "dies").stdout)[0])
    example.phalanx("stop", "dies")
    assert last - 1 <= again <= last + 1
