"""Steps of a training whose compute has a given length, as a ratio to its exchange of gradients, on each rank.

Prints one JSON object: the length of a step without exchange, with plain DDP and with what phalanx.torch suggests.
The last two take turns. `--busy` computes on the CPU, otherwise the compute needs none, as on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import phalanx.torch as exchange

# Pixels of Fashion-MNIST, ten layers, and its classes.
WIDTHS = (784, *[1024] * 10, 10)
_TURN_STEPS = 3


class Compute(torch.autograd.Function):
    """Passes its input on after a while: a third of the layer's compute forward, two thirds backward."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, work: Callable[[float], None]) -> torch.Tensor:
        context.work = work
        work(1 / 3)
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        context.work(2 / 3)
        return gradient, None


class Network(nn.Module):
    """A multilayer perceptron with 10.3 million parameters; `parameter_s` is the compute for each of them."""

    def __init__(self, is_busy: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*widths) for widths in pairwise(WIDTHS))
        self.parameter_s = 0.0
        self._is_busy = is_busy
        self._idle_from_s = 0.0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self._idle_from_s = time.perf_counter()
        for layer in self.layers:
            work = partial(self._work, _parameters(layer))
            values = Compute.apply(torch.relu(layer(values)), work)  # pyright: ignore[reportAssignmentType]
        return values

    def _work(self, parameters: int, part: float) -> None:
        took_s = self.parameter_s * parameters * part
        if not self._is_busy:
            # A GPU goes on to the next layer by itself, whatever the CPU does meanwhile.
            self._idle_from_s += took_s
            time.sleep(max(0.0, self._idle_from_s - time.perf_counter()))
            return
        until_s = time.thread_time() + took_s
        square = torch.ones(64, 64)
        while time.thread_time() < until_s:
            torch.mm(square, square)


def _parameters(layer: nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())


def exchange_s(network: nn.Module) -> float:
    """Return how long the sum of all gradients over the ranks takes by itself."""
    gradients = torch.zeros(sum(parameter.numel() for parameter in network.parameters()))
    times_s = []
    for _ in range(4):
        dist.barrier()
        began_s = time.perf_counter()
        dist.all_reduce(gradients)
        times_s.append(time.perf_counter() - began_s)
    longest = torch.tensor(statistics.median(times_s[1:]))
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return float(longest)


def turn_s(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, mode: Callable[[], Any]) -> float:
    """Return the mean length of some steps, which begin together."""
    dist.barrier()
    began_s = time.perf_counter()
    for _ in range(_TURN_STEPS):
        with mode():
            model(torch.ones(1, WIDTHS[0])).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - began_s) / _TURN_STEPS


def measured(ratio: float, is_busy: bool, turns: int) -> dict[str, Any]:
    network = Network(is_busy)
    exchange_alone_s = exchange_s(network)
    network.parameter_s = ratio * exchange_alone_s / sum(_parameters(layer) for layer in network.layers)
    plain = DistributedDataParallel(network)
    found = exchange.suggest(plain, torch.ones(1, WIDTHS[0]), steps=3)
    chosen = exchange.apply(DistributedDataParallel(network), found)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-6)
    kinds = {"alone_s": (plain, plain.no_sync), "plain_s": (plain, nullcontext), "chosen_s": (chosen, nullcontext)}
    for model, mode in kinds.values():
        turn_s(model, optimizer, mode)
    rounds = [{name: turn_s(model, optimizer, mode) for name, (model, mode) in kinds.items()} for _ in range(turns)]
    medians = {name: statistics.median(one[name] for one in rounds) for name in kinds}
    return {"exchange_s": exchange_alone_s, "choice": found.choice.name, **medians, "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ratio", type=float, required=True, help="compute : exchange")
    parser.add_argument("--busy", action="store_true", help="compute on the CPU")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    answer = measured(arguments.ratio, arguments.busy, arguments.turns)
    if dist.get_rank() == 0:
        print(json.dumps(answer), flush=True)
    time.sleep(1)  # examples/fashion_mnist/train.py tells why
    dist.destroy_process_group()
    # A thread of gloo that still has a hook of PowerSGD aborts an interpreter that ends.
    os._exit(0)


if __name__ == "__main__":
    main()
