"""TensorFlow on a real cluster: three ways to train, one evaluation, TensorBoard, and the death of a worker."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from terminals import Terminal
from verdicts import is_proven

pytestmark = pytest.mark.cluster

FIRST_USE_S = 900
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
RUN = ("run", "--recipe", "tensorflow", "--launcher", "tensorflow", "-N", "1")
PROGRAM = ("--", "python", "train.py", "--batch-size", "96")
LITTLE, TRAIN = (*PROGRAM, "--images", "960"), (*PROGRAM, "--images", "3000")
IN_STEP = r"^\[worker (\d)\] worker (\d): 2 in step$"
NODES = [f"deeplearning-worker{number}" for number in (1, 2, 3, 4)]


@pytest.fixture(scope="module")
def example(engines) -> Terminal:
    """A copy of the example."""
    return engines.with_example("tensorflow_fashion_mnist")


@pytest.fixture(scope="module")
def died(example) -> str:
    """Mirrored workers, of which one is killed in its third epoch or later: what the job has printed."""
    train = (*TRAIN, "--epochs", "9999")
    example.phalanx(*RUN, "-n", "2", "--name", "mirrored", "--checkpoint", "mirrored", "--detach", *train)
    example.wait_until_printed("mirrored", "Epoch 3/9999", timeout_s=FIRST_USE_S)
    example.on(NODES[1], "pkill -KILL -f [t]rain.py")
    job = example.phalanx("logs", "-f", "mirrored", check=False, timeout_s=FIRST_USE_S)
    assert job.returncode != 0
    assert "worker 1 on deeplearning-worker2 was ended by SIGKILL" in job.stderr
    assert is_proven(job.stderr, 4)
    return job.stdout


@pytest.fixture(scope="module")
def last(died) -> int:
    """The epoch in which a worker was killed."""
    return int(re.findall(r"Epoch (\d+)/", died)[-1])


@pytest.fixture(scope="module")
def mirrored(example, last) -> str:
    """The same training, resumed and complete after the epoch that follows the last one."""
    done = example.phalanx("run", "--resume", "mirrored", *TRAIN, "--epochs", str(last + 1), timeout_s=FIRST_USE_S)
    assert is_proven(done.stderr, 4)
    return done.stdout


@pytest.fixture(scope="module")
def served(example) -> str:
    done = example.phalanx(
        *RUN, "--ps", "1", "-n", "1", *TRAIN, "--epochs", "3", "--out", "/efs/served", timeout_s=FIRST_USE_S
    )
    assert "[chief 0] checkpoint: /efs/served/ckpt-3" in done.stdout
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
def by_scripts(example, served, cifar10) -> None:
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
    wait_on(example, "head", "ls /efs/tf/logs/worker0.exit /efs/tf/logs/worker1.exit")
    assert example.on("head", "cat /efs/tf/logs/worker*.exit").split() == ["0", "0"]


def wait_on(terminal: Terminal, node: str, condition: str, limit_s: int = 900) -> None:
    """Wait on a node until a command succeeds, because a `phalanx ssh` for each look takes CPU time from the tasks."""
    terminal.on(node, f"timeout {limit_s} sh -c 'until {condition}; do sleep 0.5; done' >/dev/null 2>&1", limit_s + 60)


def test_mirrored_workers_train_as_one(example):
    train = (*LITTLE, "--epochs", "1", "--out", "/efs/quick")
    done = example.phalanx(*RUN, "-n", "2", *train, timeout_s=FIRST_USE_S)
    assert sorted(re.findall(IN_STEP, done.stdout, re.M)) == [(number, number) for number in "01"]
    assert "[worker 0] checkpoint: /efs/quick/ckpt-1" in done.stdout
    assert is_proven(done.stderr, 4)


@pytest.mark.long
def test_mirrored_workers_train_as_one_and_resume_from_their_last_epoch_after_a_death(died, last, mirrored):
    for output in (died, mirrored):
        assert len(re.findall(r"^\[worker 0\] .*accuracy: 0\.\d+", output, re.M)) >= 1
        assert sorted(re.findall(IN_STEP, output, re.M)) == [(number, number) for number in "01"]
    again = int(re.findall(r"Epoch (\d+)/", mirrored)[0])
    assert last - 1 <= again <= last + 1
    assert f"[worker 0] checkpoint: /efs/mirrored/ckpt-{last + 1}" in mirrored


def test_a_chief_trains_and_its_servers_are_ended(example):
    train = (*LITTLE, "--epochs", "1", "--out", "/efs/chief")
    done = example.phalanx(*RUN, "--ps", "1", "-n", "1", *train, timeout_s=FIRST_USE_S)
    assert "[chief 0] checkpoint: /efs/chief/ckpt-1" in done.stdout
    assert is_proven(done.stderr, 4)


@pytest.mark.long  # test_emr_jobs.py runs such scripts, too
def test_scripts_end_their_servers_when_all_workers_have(example, by_scripts):
    assert "worker 1 has finished" in example.on("head", "cat /efs/tf/logs/worker1")
    for node in NODES[:2]:
        wait_on(example, node, "! pgrep -f [t]rain_flags.py")


# One process, because to import TensorFlow takes more CPU time than to evaluate.
EVALUATE = """
import runpy
import sys


def run(function, name, *arguments):
    sys.argv = [name, *arguments]
    try:
        function(name, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise


cifar10 = sys.argv[1]
run(runpy.run_path, "evaluate.py", "--at-least", "0.7", "/efs/mirrored", "/efs/served")
run(runpy.run_path, "evaluate.py", "--at-least", "0.7", "/efs/tf/train", "--data", cifar10)
run(runpy.run_module, "tensorboard.main", "--inspect", "--logdir", "/efs/mirrored/logs")
"""


@pytest.mark.long
def test_a_separate_program_evaluates_all_and_tensorboard_reads_the_logs(
    example, mirrored, served, by_scripts, cifar10
):
    (example.directory / "evaluate_all.py").write_text(EVALUATE)
    run = ("run", "--recipe", "tensorflow", "--launcher", "exec", "-n", "1")
    done = example.phalanx(*run, "--", "python", "evaluate_all.py", cifar10, timeout_s=FIRST_USE_S)
    assert re.findall(r"(/\w+/\w+)\S*: test accuracy 0\.[789]", done.stdout) == [
        "/efs/mirrored",
        "/efs/served",
        "/efs/tf",
    ]
    (steps,) = re.findall(r"Event statistics for /efs/mirrored/logs/train:(?s:.)*?num_steps +(\d+)", done.stdout)
    assert int(steps) >= 2
