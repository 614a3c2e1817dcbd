"""Train a small language model on the bytes of text, sharded over all ranks by FSDP; --start fine-tunes another."""

from __future__ import annotations

import argparse
import os
import resource
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

CONTEXT = 128
LIBRARY = Path(sysconfig.get_path("stdlib"))
# The directory that `phalanx run --checkpoint` keeps for the job.
OUT = Path(os.environ.get("PHALANX_CHECKPOINT", "out"))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        found = nn.functional.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.joined(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.before_network(x))


class LanguageModel(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.scores = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, pieces: torch.Tensor) -> torch.Tensor:
        """Return the mean loss, in nats for each byte, of predicting each byte from those before it."""
        known, following = pieces[:, :-1], pieces[:, 1:]
        x = self.bytes(known) + self.places(torch.arange(known.shape[1], device=known.device))
        return nn.functional.cross_entropy(self.scores(self.blocks(x)).flatten(0, 1), following.flatten())


def part_of(parameter: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds."""
    assert isinstance(parameter, DTensor)
    return parameter.to_local()


def sharded(width: int, layers: int, device: torch.device) -> nn.Module:
    """Make a model of which each rank holds its part only, at no moment the whole."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if device.type == "cuda" else None)
    with torch.device("meta"):
        model = LanguageModel(width, layers)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device=device)
    torch.manual_seed(dist.get_rank())
    for name, parameter in model.named_parameters():
        local = part_of(parameter).detach()
        is_scale = parameter.ndim == 1 and name.endswith("weight")
        local.fill_(1) if is_scale else local.zero_() if parameter.ndim == 1 else local.normal_(std=0.02)
    return model


def read(path: Path) -> torch.Tensor:
    """Return the bytes of a file, or of a directory's programs in Python."""
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    text = b"\n".join(file.read_bytes() for file in files)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def pieces_of(text: torch.Tensor, size: int, chance: torch.Generator) -> torch.Tensor:
    """Return randomly chosen pieces."""
    begins = torch.randint(len(text) - CONTEXT, (size, 1), generator=chance)
    return text[begins + torch.arange(CONTEXT + 1)].long()


@torch.no_grad()
def tested(model: nn.Module, text: torch.Tensor, device: torch.device) -> float:
    loss = model(pieces_of(text, 8, torch.Generator().manual_seed(1)).to(device))
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def start_from(model: nn.Module, optimizer: torch.optim.Optimizer, directory: Path, *, only_model: bool) -> None:
    """Load a checkpoint that any number of ranks has written."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model} if only_model else {"model": of_model, "optimizer": of_optimizer}
    load(state, checkpoint_id=directory)
    set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)


def newest(directory: Path) -> Path | None:
    """Return the last whole checkpoint, whose name ends with its step; None if there is none."""
    name = directory / "last"
    return directory / name.read_text().strip() if name.exists() else None


def keep(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write a part by each rank, then name the whole: a job that ends meanwhile leaves the last whole one."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=OUT / f"step-{step}")
    if dist.get_rank() == 0:
        (OUT / "last.new").write_text(f"step-{step}\n")
        (OUT / "last.new").replace(OUT / "last")


def limit_memory(room_mib: int) -> int:
    """Refuse this process more memory than it has and so much; return what it has, in MiB."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    if room_mib:
        most = (int(status["VmData"].split()[0]) << 10) + (room_mib << 20)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return int(status["VmRSS"].split()[0]) >> 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=LIBRARY, help="a file; default: Python's standard library")
    parser.add_argument("--start", type=Path, help="begin with the model of this directory's last checkpoint")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="for each rank")
    parser.add_argument("--lr", type=float, default=0, help="default: 0.25 / width")
    parser.add_argument("--room-mib", type=int, default=0, help="play a node with only so much memory left")
    chosen = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    before_mib = limit_memory(chosen.room_mib)
    model = sharded(chosen.width, chosen.layers, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=chosen.lr or 0.25 / chosen.width)
    held = sum(part_of(one).numel() for one in model.parameters())
    print(
        f"rank {dist.get_rank()} holds {held:,} of {sum(one.numel() for one in model.parameters()):,} weights",
        flush=True,
    )
    step = 0
    if own := newest(OUT):
        start_from(model, optimizer, own, only_model=False)
        step = int(own.name.removeprefix("step-"))
    elif chosen.start and (theirs := newest(chosen.start)):
        start_from(model, optimizer, theirs, only_model=True)
    text = read(chosen.text)
    training, held_back = text[: -len(text) // 10], text[-len(text) // 10 :]
    first = tested(model, held_back, device)
    chance, began = torch.Generator().manual_seed(1000 * step + dist.get_rank()), time.monotonic()
    steps = range(step + 1, chosen.steps + 1)
    for _ in steps:
        model(pieces_of(training, chosen.batch_size, chance).to(device)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    took_s = time.monotonic() - began
    keep(model, optimizer, max(step, chosen.steps))
    last = tested(model, held_back, device)
    peak_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10) - before_mib
    if gpu:
        peak_mib = torch.cuda.max_memory_allocated() >> 20
    print(f"rank {dist.get_rank()} took {peak_mib} MiB of memory for the model at most", flush=True)
    if dist.get_rank() == 0:
        read_bytes = len(steps) * chosen.batch_size * CONTEXT * dist.get_world_size()
        print(f"held-back loss {first:.3f} before, {last:.3f} after {len(steps)} steps", flush=True)
        print(f"{read_bytes / took_s:,.0f} bytes of text a second", flush=True)
    time.sleep(1)  # examples/fashion_mnist/train.py tells why
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
