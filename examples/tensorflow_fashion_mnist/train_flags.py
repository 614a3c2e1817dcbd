"""Train as with TensorFlow 1: parameter servers and asynchronous workers, whose roles are given by flags."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import model as network  # imported before tensorflow, because it selects the version of Keras
import numpy as np
import tensorflow as tf
from data import DEFAULT_DIRECTORY, load

v1 = tf.compat.v1


def batches(arguments: argparse.Namespace) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield random batches of images and labels without end: each worker draws its own."""
    images, labels = load(arguments.data_dir, "train")
    draw = np.random.default_rng(arguments.task_index)
    while True:
        some = draw.integers(len(images), size=arguments.batch_size)
        yield images[some], labels[some]


class Report(v1.train.SessionRunHook):
    """Prints the loss from time to time."""

    def __init__(self, loss: tf.Tensor, step: tf.Tensor) -> None:
        self.tensors = {"loss": loss, "step": step}
        self.said = time.monotonic()

    def before_run(self, _context: object) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs(self.tensors)

    def after_run(self, _context: object, values: v1.train.SessionRunValues) -> None:
        if time.monotonic() - self.said > 1:
            print("step {step}, loss = {loss:.2f}".format(**values.results), flush=True)
            self.said = time.monotonic()


def wait_for_chief(directory: Path, limit_s: float = 300) -> None:
    """Wait for the first worker's first checkpoint, when the variables exist: a session would check every 30 s."""
    deadline = time.monotonic() + limit_s
    while tf.train.latest_checkpoint(str(directory)) is None:
        if time.monotonic() > deadline:
            raise SystemExit(f"after {limit_s:.0f} s worker 0 has not written its first checkpoint to {directory}")
        time.sleep(0.2)


def train(arguments: argparse.Namespace, server: v1.train.Server, cluster: tf.train.ClusterSpec) -> None:
    data = batches(arguments)
    shape = next(data)[0].shape[1:]
    here = f"/job:worker/task:{arguments.task_index}"
    with v1.device(v1.train.replica_device_setter(worker_device=here, cluster=cluster)):
        step = v1.train.get_or_create_global_step()
        images = v1.placeholder(tf.uint8, [None, *shape])
        labels = v1.placeholder(tf.int64, [None])
        scores = network.build(shape)(images)
        loss = v1.losses.sparse_softmax_cross_entropy(labels, scores)
        train_step = v1.train.AdamOptimizer(arguments.learning_rate).minimize(loss, step)
        v1.summary.scalar("loss", loss)

    if arguments.task_index > 0:
        wait_for_chief(arguments.train_dir)
    # Without these filters a worker waits for every other one, including those that have finished.
    config = v1.ConfigProto(device_filters=["/job:ps", here])
    with v1.train.MonitoredTrainingSession(
        master=server.target,
        is_chief=arguments.task_index == 0,
        checkpoint_dir=str(arguments.train_dir),
        hooks=[v1.train.StopAtStepHook(last_step=arguments.max_steps), Report(loss, step)],
        save_summaries_steps=20,
        config=config,
    ) as session:
        while not session.should_stop():
            session.run(train_step, dict(zip((images, labels), next(data), strict=True)))
    print(f"worker {arguments.task_index} has finished", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ps_hosts", required=True)
    parser.add_argument("--worker_hosts", required=True)
    parser.add_argument("--job_name", choices=("ps", "worker"), required=True)
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--data_dir", type=Path, default=DEFAULT_DIRECTORY)
    parser.add_argument("--train_dir", type=Path, default=Path("out"))
    parser.add_argument("--batch_size", type=int, default=64, help="images per worker and step (%(default)s)")
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--max_steps", type=int, default=2_000, help="for all workers together (%(default)s)")
    arguments = parser.parse_args()

    v1.disable_eager_execution()
    hosts = {"ps": arguments.ps_hosts.split(","), "worker": arguments.worker_hosts.split(",")}
    cluster = tf.train.ClusterSpec(hosts)
    server = v1.train.Server(cluster, job_name=arguments.job_name, task_index=arguments.task_index)
    if arguments.job_name == "ps":
        server.join()  # never ends by itself
    train(arguments, server, cluster)


if __name__ == "__main__":
    main()
