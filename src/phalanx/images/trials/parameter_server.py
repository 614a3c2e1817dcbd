"""Try MXNet on two workers: their sum through the parameter server, and a linear model that both train."""

# pyright: reportMissingImports=false

import os
import socket
import subprocess
import sys

_KEY = 99
ROLES = ("scheduler", "server", "worker", "worker")


def work() -> None:
    import mxnet as mx  # here, because it begins to serve when it is imported

    store = mx.kvstore.create("dist_sync")
    # A number, as gluon's own keys are: MXNet does not mix them with names.
    store.init(_KEY, mx.nd.zeros(1))
    store.push(_KEY, mx.nd.full(1, store.rank + 1))
    total = mx.nd.zeros(1)
    store.pull(_KEY, out=total)
    assert total.asscalar() == 3, "the sum over both workers is wrong"
    network = mx.gluon.nn.Dense(1)
    network.initialize()
    trainer = mx.gluon.Trainer(network.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=store)
    inputs = mx.nd.random.normal(shape=(64, 2))
    targets = mx.nd.dot(inputs, mx.nd.array([[1], [-2]]))
    losses = []
    for _ in range(50):
        with mx.autograd.record():
            loss = ((network(inputs) - targets) ** 2).mean()
        loss.backward()
        trainer.step(1)
        losses.append(loss.asscalar())
    assert losses[-1] < losses[0] / 2, losses


def start() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    root = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": port, "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1"}
    argv = [sys.executable, __file__]
    processes = [subprocess.Popen(argv, env={**os.environ, **root, "DMLC_ROLE": role}) for role in ROLES]
    if failed := [process.args for process in processes[2:] if process.wait()]:
        for process in processes:
            process.kill()
        raise SystemExit(f"{len(failed)} of 2 workers failed")
    for process in processes:
        process.wait(60)


if os.environ.get("DMLC_ROLE") == "worker":
    work()
elif "DMLC_ROLE" in os.environ:
    import mxnet  # noqa: F401  (it serves until the workers are done, and ends)
else:
    start()
