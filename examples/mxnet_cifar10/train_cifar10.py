"""Train ResNet on CIFAR-10, or on images of its shape, with MXNet: alone, or with others (--kv-store dist_…)."""

from __future__ import annotations

import argparse
import logging
import sys

import data
import mxnet as mx
import numpy as np
from resnet import resnet


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=("resnet",), default="resnet")
    parser.add_argument("--num-layers", type=int, default=20, help="20, 32, 44, 50, 56 or 110 (%(default)s)")
    parser.add_argument("--kv-store", default="device", help="local, device, dist_sync, dist_device_sync (%(default)s)")
    # The list that scripts compute for a node without GPUs is empty, and leaves the option without a value.
    parser.add_argument("--gpus", nargs="?", help="such as 0,1 (default: the CPU)")
    parser.add_argument("--num-epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128, help="images per worker and step (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--data-dir", help="CIFAR-10's binary files, *.bin (default: Fashion-MNIST in their shape)")
    parser.add_argument("--images", type=int, help="only so many training images, of all workers together")
    parser.add_argument("--model-prefix", help="write PREFIX-0001.params and so on")
    parser.add_argument("--disp-batches", type=int, default=20, help="show the speed after so many (%(default)s)")
    parser.add_argument("--at-least", type=float, default=0.0, help="exit with 1 if the test accuracy is lower")
    return parser.parse_args()


def iterators(options: argparse.Namespace, kv: mx.kvstore.KVStore) -> tuple[mx.io.DataIter, mx.io.DataIter]:
    """Return iterators over this worker's part of the training images, and over 1,000 test images."""
    images, labels = data.load(options.data_dir, "train")
    # The same order and length everywhere: with dist_sync, a worker with more batches would wait forever.
    order = np.random.RandomState(0).permutation(len(images))[: options.images]
    part = order[: len(order) // kv.num_workers * kv.num_workers][kv.rank :: kv.num_workers]
    chosen = data.numbers(images[part])
    train = mx.io.NDArrayIter(chosen, labels[part], options.batch_size, shuffle=True, last_batch_handle="discard")
    images, labels = data.load(options.data_dir, "test")
    return train, mx.io.NDArrayIter(data.numbers(images[:1000]), labels[:1000], 250)


def main() -> int:
    options = arguments()
    kv = mx.kvstore.create(options.kv_store)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    mx.random.seed(7)
    train, test = iterators(options, kv)
    context = [mx.gpu(int(number)) for number in options.gpus.split(",")] if options.gpus else mx.cpu()
    model = mx.mod.Module(resnet(options.num_layers), context=context)
    save = mx.callback.do_checkpoint(options.model_prefix) if options.model_prefix and kv.rank == 0 else None
    model.fit(
        train,
        num_epoch=options.num_epochs,
        kvstore=kv,
        optimizer="sgd",
        optimizer_params={"learning_rate": options.lr, "momentum": 0.9, "wd": 1e-4},
        initializer=mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2),
        batch_end_callback=mx.callback.Speedometer(options.batch_size, options.disp_batches),
        epoch_end_callback=save,
    )
    accuracy = model.score(test, "acc")[0][1]
    logging.info("test accuracy %.4f after %d epochs", accuracy, options.num_epochs)
    return 0 if accuracy >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
