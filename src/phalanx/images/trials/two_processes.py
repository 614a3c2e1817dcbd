"""Try JAX on two processes: a sum over both, and a linear model whose batch they share."""

# pyright: reportMissingImports=false

import socket
import subprocess
import sys


def work(address: str, number: int) -> None:
    import jax  # here, because only the child processes need it
    import numpy as np  # here, for the same reason
    from jax.sharding import AxisType, NamedSharding, PartitionSpec  # here, for the same reason

    jax.distributed.initialize(address, 2, number)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("data"))
    ranks = jax.make_array_from_process_local_data(split, np.full(jax.local_device_count(), number + 1.0))
    total = jax.jit(jax.numpy.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(ranks)
    assert total == 3 * jax.local_device_count(), "the sum over both processes is wrong"
    rows = np.random.default_rng(number).normal(size=(64, 2)).astype(np.float32)
    inputs = jax.make_array_from_process_local_data(split, rows)
    targets = jax.make_array_from_process_local_data(split, rows @ np.array([1, -2], np.float32))
    gradient = jax.jit(jax.grad(lambda weights, inputs, targets: ((inputs @ weights - targets) ** 2).mean()))
    weights = jax.numpy.zeros(2)
    for _ in range(50):
        weights -= 0.1 * gradient(weights, inputs, targets)
    assert np.allclose(weights, [1, -2], atol=1e-2), weights


def start() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [subprocess.Popen([sys.executable, __file__, address, str(number)]) for number in range(2)]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"the processes ended with exit codes {codes}")


if len(sys.argv) == 3:
    work(sys.argv[1], int(sys.argv[2]))
else:
    start()
