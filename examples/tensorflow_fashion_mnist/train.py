"""Train with the strategy that suits TF_CONFIG: parameter servers if it names some, else mirrored workers."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import model as network  # imported before tensorflow, because it selects the version of Keras
import tensorflow as tf
from data import DEFAULT_DIRECTORY, load

Strategy = tf.distribute.Strategy
# The directory that `phalanx run --checkpoint` keeps for the job.
OUT = Path(os.environ.get("PHALANX_CHECKPOINT", "out"))


def strategy_of(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> Strategy:
    """Return the strategy of this task; a task that only serves never returns, and is ended from outside."""
    if "ps" not in resolver.cluster_spec().jobs:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if resolver.task_type in ("worker", "ps"):
        tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        ).join()
    return tf.distribute.ParameterServerStrategy(resolver)


def batches(arguments: argparse.Namespace, strategy: Strategy):
    """Return the training images for `fit`, shuffled and repeated; `--batch-size` counts all workers together."""
    images, labels = load(arguments.data, "train")
    images, labels = images[: arguments.images], labels[: arguments.images]

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((images, labels))
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        data = data.shuffle(len(images), seed=context.input_pipeline_id).repeat()
        return data.batch(context.get_per_replica_batch_size(arguments.batch_size)).prefetch(2)

    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return images.shape[1:], len(images), tf.keras.utils.experimental.DatasetCreator(make)
    return images.shape[1:], len(images), strategy.distribute_datasets_from_function(make)


def train(arguments: argparse.Namespace, strategy: Strategy, task: int) -> None:
    is_chief = task == 0
    shape, images, data = batches(arguments, strategy)
    with strategy.scope():
        model = network.build(shape)
        model.compile(
            tf.keras.optimizers.Adam(arguments.learning_rate),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    # Mirrored workers save together, each to its own directory; only the first worker's is used.
    out = arguments.out if is_chief else arguments.out / f"worker{task}"
    checkpoint = tf.train.Checkpoint(model=model)
    checkpoints = tf.train.CheckpointManager(checkpoint, str(out), max_to_keep=2)
    with strategy.scope():
        checkpoint.restore(tf.train.latest_checkpoint(str(arguments.out)))  # does nothing if there is none
    logs = tf.keras.callbacks.TensorBoard(str(arguments.out / "logs"), write_graph=False)
    model.fit(
        data,
        epochs=arguments.epochs,
        # One is saved after each epoch.
        initial_epoch=int(checkpoint.save_counter.numpy()),
        steps_per_epoch=images // arguments.batch_size,
        callbacks=[logs, tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: checkpoints.save())],
        verbose=2 if is_chief else 0,
    )
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        # All leave together: one that stays longer would consider the others dead.
        strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(lambda: tf.constant(1.0)), axis=None)
    if is_chief:
        print(f"checkpoint: {checkpoints.latest_checkpoint}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_DIRECTORY, help="the data's files (%(default)s)")
    parser.add_argument("--out", type=Path, default=OUT, help="for checkpoints and logs (%(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=192, help="images per step, all workers (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--images", type=int, help="train on the first N images only")
    arguments = parser.parse_args()

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = strategy_of(resolver)
    print(f"{resolver.task_type} {resolver.task_id}: {strategy.num_replicas_in_sync} in step", flush=True)
    train(arguments, strategy, resolver.task_id or 0)


if __name__ == "__main__":
    main()
