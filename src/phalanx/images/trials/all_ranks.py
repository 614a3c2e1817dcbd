"""Try mpi4py on two ranks: an allreduce, and a linear model that both ranks fit on their own halves of the data."""

# pyright: reportMissingImports=false

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
assert world.allreduce(world.rank + 1) == 3, "the sum over both ranks is wrong"
rng = np.random.default_rng(world.rank)
inputs = rng.normal(size=(64, 2))
targets = inputs @ [1.0, -2.0]
weights = np.zeros(2)
for _ in range(100):
    own = inputs.T @ (inputs @ weights - targets) / len(inputs)
    total = np.empty_like(own)
    world.Allreduce(own, total)
    weights -= 0.1 * total
assert np.allclose(weights, [1, -2], atol=1e-3), weights
