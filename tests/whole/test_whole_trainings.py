"""What older guides say that a training reaches, with their numbers of processes: `make soak PART=engines`.

`make test` trains less, and asks only that a network has learned something.
"""

from __future__ import annotations

import re

import pytest
from terminals import ONE_THREAD, Terminal
from verdicts import is_proven

pytestmark = pytest.mark.whole

WITHIN_S = 3600
ONE_THREAD_EACH = ("--env-worker", "OMP_NUM_THREADS:1", "--env-server", "OMP_NUM_THREADS:1")
NODES = ("deeplearning-worker1", "deeplearning-worker2")


def figure(what: str, *values: float) -> None:
    """Print what the result file keeps."""
    print(f"figure: {what}: {', '.join(f'{value:g}' for value in values)}")


def example_of(engines: Terminal, name: str) -> Terminal:
    """Return a terminal in a copy of an example, which several tests may share."""
    directory = engines.state.parent / name
    return Terminal(directory, engines.state) if directory.exists() else engines.with_example(name)


def accuracies(output: str) -> list[float]:
    return [float(text) for text in re.findall(r"test accuracy (0\.\d+)", output)]


@pytest.mark.parametrize(("ranks", "each", "batch", "epochs"), [(3, 1, 100, 6), (32, 8, 10, 9)])
def test_chainermn_reaches_0_97_on_mnist(engines: Terminal, ranks: int, each: int, batch: int, epochs: int) -> None:
    example = example_of(engines, "chainermn_mnist")
    sizes = ("-e", str(epochs), "-b", str(batch), "-u", "100", "--at-least", "0.97")
    arguments = ("--recipe", "chainermn", *ONE_THREAD, "-n", str(ranks), "-N", str(each), "--", "python")
    done = example.phalanx("run", *arguments, "train_mnist.py", *sizes, timeout_s=WITHIN_S)
    assert f"Num process (COMM_WORLD): {ranks}" in done.stdout
    rows = re.findall(r"^\[0\] \D*([1-9]) +(\S+) +(\S+) +(\S+) +(\S+) ", done.stdout, re.MULTILINE)
    figure(f"ChainerMN, {ranks} ranks, accuracy of each epoch", *(float(row[4]) for row in rows))
    assert len(rows) == epochs and float(rows[-1][4]) >= 0.97
    assert is_proven(done.stderr, 4)


@pytest.mark.parametrize(
    ("store", "more"), [("dist_sync", ("--lr", "0.3", "--num-epochs", "3")), ("dist_async", ("--num-epochs", "3"))]
)
def test_mxnets_parameter_server_reaches_0_95_on_mnist(engines: Terminal, store: str, more: tuple[str, ...]) -> None:
    example = example_of(engines, "mxnet_mnist")
    arguments = ("--recipe", "mxnet", "-n", "3", "-s", "2", *ONE_THREAD_EACH)
    training = ("python", "train_mnist.py", "--kv-store", store, *more)
    job = example.phalanx("launch", *arguments, *training, timeout_s=WITHIN_S)
    found = accuracies(job.stdout)
    figure(f"MXNet, {store}, accuracy of each worker", *found)
    assert len(found) == 3
    # With dist_async, the last worker has seen the updates of all.
    assert (min if store == "dist_sync" else max)(found) >= 0.95


def test_a_residual_network_classifies_images_that_it_has_not_seen(engines: Terminal) -> None:
    cifar10 = example_of(engines, "mxnet_cifar10")
    sizes = ("--network", "resnet", "--images", "6000", "--batch-size", "32", "--num-epochs", "4")
    arguments = ("--recipe", "mxnet", "-n", "2", *ONE_THREAD_EACH, "python", "train_cifar10.py")
    job = cifar10.phalanx("launch", *arguments, "--kv-store", "dist_device_sync", *sizes, timeout_s=WITHIN_S)
    trained = [float(text) for text in re.findall(r"Train-accuracy=(0\.\d+)", job.stdout)]
    found = accuracies(job.stdout)
    figure("ResNet of 20 layers, accuracy on its training images, at last", *trained[-2:])
    figure("ResNet of 20 layers, accuracy on 1,000 test images", *found)
    assert len(found) == 2 and min(found) >= 0.75
    assert min(trained[-2:]) >= 0.8


def test_two_servers_and_sixteen_workers_of_tensorflow_1_lower_the_loss(engines: Terminal) -> None:
    example = example_of(engines, "tensorflow_fashion_mnist")
    own = ("run", "--recipe", "tensorflow", "--launcher", "exec", "-n", "1", "--", "true")
    example.phalanx(*own, timeout_s=WITHIN_S)
    example.phalanx("put", ".", "tf16")
    python = example.on("head", "ls -d /efs/.phalanx/environments/tensorflow-*/bin/python").split()[0]
    (example.directory / "hosts").write_text("\n".join(NODES) + "\n")
    options = {
        "--trainer_script_dir": "/efs/tf16",
        "--training_script": "/efs/tf16/train_flags.py",
        "--data_dir": "/usr/share/datasets/fashion-mnist",
        "--train_dir": "/efs/tf16/train",
        "--log_dir": "/efs/tf16/logs",
        "--max_steps": "3000",
        "--python": python,
        "--workers_file_path": "hosts",
        "--worker_gpu_count": "8",
    }
    example.phalanx("tf-scripts", *(word for pair in options.items() for word in pair))
    example.phalanx("put", "hosts", "tf16/hosts")
    # The loop from the 2018 documentation.
    loop = 'while read -u 10 host; do ssh $host "bash $EFS_MOUNT/tf16/$host.sh" & done 10<$EFS_MOUNT/tf16/hosts; wait'
    example.on("head", f"bash -lc '{loop}'", WITHIN_S)
    exits = "/efs/tf16/logs/worker*.exit"
    example.on("head", f"timeout {WITHIN_S} sh -c 'until [ $(ls {exits} | wc -l) = 16 ]; do sleep 2; done'", WITHIN_S)
    assert example.on("head", f"cat {exits}").split() == ["0"] * 16
    said = example.on("head", "cat /efs/tf16/logs/worker?* | grep -h ', loss = '")
    losses = [
        float(loss)
        for _, loss in sorted((int(step), loss) for step, loss in re.findall(r"step (\d+), loss = ([\d.]+)", said))
    ]
    figure("TensorFlow 1, 2 + 16 tasks, loss at first and at last", losses[0], sum(losses[-10:]) / 10)
    assert sum(losses[-10:]) / 10 < 0.82 < losses[0]


def test_three_ranks_of_jax_and_of_deepspeed_learn(engines: Terminal) -> None:
    for name, launcher, sizes, saved in (
        ("jax_fashion_mnist", "jax", ("--epochs", "2", "--images", "24000"), "/efs/whole/weights.npz"),
        (
            "deepspeed_fashion_mnist",
            "deepspeed",
            ("--epochs", "2", "--images", "12000", "--out", "/efs/deep"),
            "/efs/deep",
        ),
    ):
        example = example_of(engines, name)
        recipe = ("run", "--recipe", launcher, *ONE_THREAD)
        arguments = ("--checkpoint", "whole", "--launcher", launcher, "-n", "3", "-N", "1", "--", "python", "train.py")
        example.phalanx(*recipe, *arguments, *sizes, timeout_s=WITHIN_S)
        judged = ("--launcher", "exec", "-n", "1", "--", "python", "evaluate.py", saved, "--at-least", "0.8")
        found = accuracies(example.phalanx(*recipe, *judged, timeout_s=WITHIN_S).stdout)
        figure(f"{launcher}, 3 ranks, test accuracy", *found)
        assert min(found) >= 0.8
