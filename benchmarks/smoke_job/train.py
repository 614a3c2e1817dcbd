"""A training of seconds over all ranks: every rank must see others' data, and all must end with the same weights."""

from __future__ import annotations

import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 50


def main() -> None:
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(rank)  # each rank has its own data
    inputs = torch.randn(64, 4)
    targets = inputs.sum(dim=1, keepdim=True)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.tensor(0.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    all_weights = [torch.empty_like(weights) for _ in range(size)]
    distributed.all_gather(all_weights, weights)
    if loss > 0.01 or not all(torch.equal(weights, other) for other in all_weights):
        raise SystemExit(f"rank {rank}: loss {loss:.4f}, weights {all_weights}")
    if rank == 0:
        print(f"torch {torch.__version__}: {size} ranks have the same weights, loss {loss:.1e}", flush=True)
    time.sleep(1)  # examples/fashion_mnist/train.py tells why
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
