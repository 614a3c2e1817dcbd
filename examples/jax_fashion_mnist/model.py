"""A small network in plain JAX: two hidden layers, ten classes, and Adam."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

SIZES = (784, 256, 128, 10)

Weights = Mapping[str, jax.Array]


def initial(seed: int) -> dict[str, np.ndarray]:
    """Draw the initial weights by He's method: the same in every process with the same seed.

    NumPy draws them, because XLA would first compile a program for every shape, which takes longer.
    """
    random, weights = np.random.default_rng(seed), {}
    for number, (inputs, outputs) in enumerate(pairwise(SIZES)):
        weights[f"kernel{number}"] = random.normal(0, (2 / inputs) ** 0.5, (inputs, outputs)).astype(np.float32)
        weights[f"bias{number}"] = np.zeros(outputs, np.float32)
    return weights


def scores(weights: Weights, images: jax.Array) -> jax.Array:
    """Map images of bytes, (batch, 784), to one score per class."""
    values = (images.astype(jnp.float32) - 72.9) / 90.0
    last = len(SIZES) - 2
    for number in range(last + 1):
        values = values @ weights[f"kernel{number}"] + weights[f"bias{number}"]
        values = values if number == last else jax.nn.relu(values)
    return values


def loss(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross entropy."""
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(weights, images)), labels[:, None], axis=1).mean()


def adam(weights: Weights, moments: tuple, gradient: Weights, step: jax.Array, rate: float) -> tuple:
    """Make one step of Adam; return the new weights and moments."""
    first = jax.tree.map(lambda mean, slope: 0.9 * mean + 0.1 * slope, moments[0], gradient)
    second = jax.tree.map(lambda mean, slope: 0.999 * mean + 0.001 * slope**2, moments[1], gradient)
    scale = rate * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    moved = jax.tree.map(lambda old, one, two: old - scale * one / (jnp.sqrt(two) + 1e-8), weights, first, second)
    return moved, (first, second)
