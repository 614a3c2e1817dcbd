"""Try TensorFlow on two workers: a sum over both, and Keras under MultiWorkerMirroredStrategy on made-up images."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

import json
import os
import socket
import subprocess
import sys


def work() -> None:
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import numpy as np  # here, after the environment is set
    import tensorflow as tf  # here, after the environment is set

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    number = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(number + 1.0)))
    assert float(total) == 3, "the sum over both workers is wrong"
    labels = np.random.default_rng(0).integers(0, 10, 256)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(10)])
        model.compile(tf.keras.optimizers.Adam(0.01), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = tf.data.Dataset.from_tensor_slices((np.eye(10, 784, dtype=np.float32)[labels], labels)).batch(64)
    losses = model.fit(data, epochs=10, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 2, losses


def start() -> None:
    with socket.socket() as one, socket.socket() as two:
        for free in (one, two):
            free.bind(("127.0.0.1", 0))
        workers = [f"127.0.0.1:{free.getsockname()[1]}" for free in (one, two)]
    processes = []
    for number in range(2):
        config = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": number}})
        processes.append(subprocess.Popen([sys.executable, __file__], env={**os.environ, "TF_CONFIG": config}))
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"the workers ended with exit codes {codes}")


if "TF_CONFIG" in os.environ:
    work()
else:
    start()
