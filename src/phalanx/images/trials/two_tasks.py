"""Try Ray on two workers: their sum, and a linear model whose gradients they compute."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import numpy as np
import ray


@ray.remote(num_cpus=1)
class Worker:
    """One half of the data."""

    def __init__(self, seed: int) -> None:
        self.inputs = np.random.default_rng(seed).normal(size=(64, 2))
        self.targets = self.inputs @ [1.0, -2.0]
        self.number = seed + 1

    def own_number(self) -> int:
        return self.number

    def gradient(self, weights: np.ndarray) -> np.ndarray:
        return self.inputs.T @ (self.inputs @ weights - self.targets) / len(self.inputs)


ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
workers = [Worker.remote(seed) for seed in range(2)]
assert sum(ray.get([worker.own_number.remote() for worker in workers])) == 3, "the sum over both workers is wrong"
weights = np.zeros(2)
for _ in range(100):
    weights -= 0.1 * sum(ray.get([worker.gradient.remote(weights) for worker in workers]))
assert np.allclose(weights, [1, -2], atol=1e-3), weights
