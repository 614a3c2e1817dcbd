"""A small training with phalanx.torch, for gradient_ranks.py, and the weights that late gradients must lead to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from phalanx import torch as gradients

STEPS = 6


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))


def network_of_buckets() -> nn.Module:
    """A network of two buckets of 1 MiB: the first one is sent before the first layer's gradients are there."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 16, generator=source), torch.randint(4, (8,), generator=source)


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    images, labels = batch(step, rank)
    return nn.functional.cross_entropy(model(images), labels)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def are_alike(model: nn.Module) -> bool:
    """Whether all ranks have the same weights, bit for bit."""
    own = weights(model)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    return all(torch.equal(own, other) for other in every)


def trained(
    choice: str, clip: float = 0.0, micro: int = 1, scaler: Any = None, made: Callable[[], nn.Module] = network
) -> DistributedDataParallel:
    """Train with a choice, as a user's script does, and take the last step."""
    # BatchNorm's statistics are each rank's own, as in `replayed`; they have no effect on weights in training.
    ddp = DistributedDataParallel(made(), bucket_cap_mb=0.001)
    model = gradients.apply(ddp, choice, scaler=scaler)
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(micro):
            with nullcontext() if part == micro - 1 else model.no_sync():
                loss = loss_of(model, micro * step + part, dist.get_rank())
                (scaler.scale(loss) if scaler else loss).backward()
        take_step(model, optimizer, clip, scaler)
    if gradients.finish(model):
        take_step(model, optimizer, clip, scaler)
    assert not gradients.finish(model)
    return model


def take_step(model: nn.Module, optimizer: torch.optim.Optimizer, clip: float, scaler: Any) -> None:
    if scaler:
        scaler.unscale_(optimizer)
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()


def replayed(clip: float = 0.0, micro: int = 1) -> torch.Tensor:
    """Return the weights after late gradients in one process: those of the first step, none, then one step late."""
    model = network()
    optimizer = optimizer_of(model)
    applied: list[list[torch.Tensor]] = []
    for step in range(STEPS):
        parts = [average_gradients(model, micro * step + part) for part in range(micro)]
        applied.append([sum(every) for every in zip(*parts, strict=True)])
        late = applied[0] if step == 0 else applied[step - 1] if step > 1 else [torch.zeros_like(g) for g in applied[0]]
        use(model, optimizer, late, clip)
    use(model, optimizer, applied[-1], clip)
    return weights(model)


def average_gradients(model: nn.Module, step: int) -> list[torch.Tensor]:
    each = [torch.autograd.grad(loss_of(model, step, rank), list(model.parameters())) for rank in range(2)]
    return [(one + other) / 2 for one, other in zip(*each, strict=True)]


def use(model: nn.Module, optimizer: torch.optim.Optimizer, values: list[torch.Tensor], clip: float) -> None:
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.grad = value.clone()
    take_step(model, optimizer, clip, None)


def is_close(one: torch.Tensor, other: torch.Tensor, by: float = 1e-5) -> bool:
    return bool(torch.allclose(one, other, atol=by, rtol=0))
