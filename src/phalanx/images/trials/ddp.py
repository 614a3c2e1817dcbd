"""Try PyTorch on two processes: an allreduce, and DistributedDataParallel on made-up images."""

# pyright: reportMissingImports=false

import time

import torch
from torch import distributed, nn

backend = "nccl" if torch.cuda.device_count() > 1 else "gloo"
distributed.init_process_group(backend)
device = f"cuda:{distributed.get_rank()}" if backend == "nccl" else "cpu"
total = torch.tensor(distributed.get_rank() + 1, device=device)
distributed.all_reduce(total)
assert total.item() == 3, "the sum over both processes is wrong"
torch.manual_seed(distributed.get_rank())
labels = torch.randint(0, 10, (256,))
images = (torch.eye(10, 784)[labels] + 0.1 * torch.randn(256, 784)).to(device)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)).to(device))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for _ in range(50):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels.to(device))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0] / 2, losses
# gloo's threads let go of the last tensor first, or the process may hang or abort here (pytorch issue 190489).
time.sleep(1)
distributed.destroy_process_group()
