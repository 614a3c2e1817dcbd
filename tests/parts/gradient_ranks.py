"""Ranks of small trainings with phalanx.torch, for test_torch.py: python gradient_ranks.py DIRECTORY RANKS:NAME,NAME… …

Each NAME is a function below; the facts that it returns are printed as JSON, one line for each. The output of a rank is
DIRECTORY/NAME/RANK.out, and .err, by the first NAME of its group; its exit code is .code.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import inspect
import itertools
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DistributedDataParallel imports it
import torch.distributed as dist
from small_training import (
    STEPS,
    are_alike,
    batch,
    is_close,
    loss_of,
    network,
    network_of_buckets,
    optimizer_of,
    replayed,
    take_step,
    trained,
    weights,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from phalanx import torch as gradients

KEPT: list[nn.Module] = []


def every_choice() -> dict[str, Any]:
    plain = weights(trained("plain"))
    facts = {}
    for name in gradients.CHOICES:
        model = trained(name)
        facts[name] = [are_alike(model), float((weights(model) - plain).abs().max())]
    return facts


def three_ranks() -> dict[str, Any]:
    """As `every_choice`, with two buckets, for what rounds or approximates and is not experimental."""
    plain = weights(trained("plain", made=network_of_buckets))
    facts = {}
    for name in ("fp16-small-buckets", "powersgd"):
        model = trained(name, made=network_of_buckets)
        facts[name] = [are_alike(model), float((weights(model) - plain).abs().max())]
    return facts


def power_sgd() -> dict[str, list[bool]]:
    """Whether the gradients of each step are those of PyTorch's own error feedback, bit for bit."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    pytorchs = DistributedDataParallel(network(), bucket_cap_mb=1, gradient_as_bucket_view=True)
    state = PowerSGDState(pytorchs.process_group, 4, start_powerSGD_iter=2)
    pytorchs.register_comm_hook(state, powerSGD_hook)
    models = [gradients.apply(DistributedDataParallel(network()), "powersgd"), pytorchs]
    is_equal: list[bool] = []
    for step in range(STEPS):
        one, other = (gradients_of(model, step) for model in models)
        is_equal.append(torch.equal(one, other))
    return {"equal": is_equal, "approximated": [bool(error.any()) for error in state.error_dict.values()]}


def gradients_of(model: nn.Module, step: int) -> torch.Tensor:
    """Return the gradients of a step, which the model then takes."""
    model.zero_grad()
    loss_of(model, step, dist.get_rank()).backward()
    found = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return found


def accumulated() -> dict[str, float]:
    """Return how far the weights are from plain DDP's after three backward passes for each step."""
    plain = weights(trained("plain", micro=3))
    names = ("small-buckets", "fp16-small-buckets", "powersgd")
    return {name: float((weights(trained(name, micro=3)) - plain).abs().max()) for name in names}


def double_buffering() -> dict[str, bool]:
    model = trained("double-buffering")
    plain = DistributedDataParallel(network())
    plain.load_state_dict(model.state_dict())
    return {
        "late by one": is_close(weights(model), replayed()),
        "clipped": is_close(weights(trained("double-buffering", clip=0.1)), replayed(clip=0.1)),
        "accumulated": is_close(weights(trained("double-buffering", micro=3)), replayed(micro=3)),
        "state_dict": list(plain.state_dict()) == list(model.state_dict()) and is_close(weights(plain), weights(model)),
    }


def scaled() -> dict[str, Any]:
    """With a scale that changes after every second step: a late gradient has the scale of its own loss."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    model = trained("double-buffering", scaler=scaler)
    return {"scale": scaler.get_scale(), "like unscaled": is_close(weights(model), replayed())}


def overflowing() -> dict[str, Any]:
    """An infinite gradient: the scaler skips the step that would apply it, and training goes on."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model = gradients.apply(DistributedDataParallel(network()), "double-buffering", scaler=scaler)
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step, dist.get_rank()) * (float("inf") if step == 2 else 1.0)).backward()
        take_step(model, optimizer, 0.0, scaler)
    return {"finite": bool(weights(model).isfinite().all()), "alike": are_alike(model), "scale": scaler.get_scale()}


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def mistakes() -> dict[str, str]:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4, sparse=True)

        def forward(self, indices: torch.Tensor) -> torch.Tensor:
            return self.table(indices)

    def without_no_sync() -> None:
        model = gradients.apply(DistributedDataParallel(network()), "double-buffering")
        for step in range(2):
            loss_of(model, step, dist.get_rank()).backward()

    sparse = DistributedDataParallel(Sparse())
    unused = DistributedDataParallel(network(), find_unused_parameters=True)
    once = gradients.apply(DistributedDataParallel(network()), "fp16")
    own = DistributedDataParallel(network())
    own._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    delayed = network()
    first, second = delayed[0].weight, delayed[3].weight
    delayed = DistributedDataParallel(
        delayed, delay_all_reduce_named_params=[("0.weight", first)], param_to_hook_all_reduce=second
    )
    return {
        "not DDP": refusal(lambda: gradients.apply(network(), "fp16")),
        "not DDP, suggest": refusal(lambda: gradients.suggest(network(), batch(0, 0)[0])),
        "unknown": refusal(lambda: gradients.apply(unused, "fast")),
        "sparse": refusal(lambda: gradients.apply(sparse, "fp16")),
        "sparse, suggest": gradients.suggest(sparse, torch.tensor([1, 2])).reason,
        "unused": refusal(lambda: gradients.apply(unused, "double-buffering")),
        "unused, fp16": refusal(lambda: gradients.apply(unused, "fp16")),
        "accumulated without no_sync": refusal(without_no_sync),
        "twice": refusal(lambda: gradients.apply(once, "fp16")),
        "own hook": refusal(lambda: gradients.apply(own, "small-buckets")),
        "delayed": refusal(lambda: gradients.apply(delayed, "fp16")),
        "many outputs": refusal(lambda: gradients.suggest(DistributedDataParallel(Pair()), batch(0, 0)[0])),
    }


def settings() -> dict[str, Any]:
    """What a model's own settings are after `apply`; each rank has its own statistics in the buffers."""
    names = ("skip_all_reduce_unused_params", "batched_grad_copy", "find_unused_parameters")
    kept = {**dict.fromkeys(names, True), "broadcast_buffers": False}
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    local = network()
    local[1].running_mean.fill_(1 + dist.get_rank())
    given: dict[str, Any] = {name: kept[name] for name in kept if name in known}
    model = gradients.apply(DistributedDataParallel(local, **given), "fp16")
    listed = DistributedDataParallel(network(), bucket_cap_mb_list=[1, 3]) if "bucket_cap_mb_list" in known else None
    return {
        "buffer": local[1].running_mean[0].item(),
        "lost": [name for name in given if getattr(model, name) != given[name]],
        "default buckets": bucket_caps(model),
        "listed buckets": bucket_caps(gradients.apply(listed, "fp16")) if listed else [1, 3],
    }


def bucket_caps(model: DistributedDataParallel) -> Any:
    """Return the sizes of buckets in MiB: "default", or a list."""
    if getattr(model, "bucket_bytes_cap_default", False):
        return "default"
    return [size / 2**20 for size in getattr(model, "bucket_bytes_cap_list", None) or [model.bucket_bytes_cap]]


def forgotten() -> dict[str, bool]:
    """Whether a model whose last gradients nobody finished ends when nothing uses it any more."""
    found = {}
    for name in ("plain", "fp16", "powersgd", "double-buffering"):
        model = gradients.apply(DistributedDataParallel(network()), name)
        for step in range(3):
            loss_of(model, step, dist.get_rank()).backward()
            optimizer_of(model).step()
        weight = weakref.ref(model.module[0].weight)
        del model
        found[name] = _ends(weight)
    return found


def _ends(weight: weakref.ref[torch.Tensor]) -> bool:
    # gloo's threads may hold what the last gradients passed through for a moment after the step.
    end = time.monotonic() + 10
    while weight() is not None and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    return weight() is None


class Pair(nn.Module):
    """A network with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(images), images


def suggested() -> dict[str, Any]:
    model = DistributedDataParallel(network())
    model.module[0].weight.grad = torch.ones_like(model.module[0].weight)
    before = [weights(model), *(buffer.clone() for buffer in model.buffers()), torch.get_rng_state()]
    found = gradients.suggest(model, batch(0, dist.get_rank())[0], steps=2)
    after = [weights(model), *model.buffers(), torch.get_rng_state()]
    asked = gradients.suggest(model, batch(0, 0)[0], candidates=["double-buffering", "bf16-small-buckets"], steps=2)
    return {
        "unchanged": all(torch.equal(one, other) for one, other in zip(before, after, strict=True)),
        "gradient": bool((model.module[0].weight.grad == 1).all()) and model.module[3].weight.grad is None,
        "choice": found.choice.name,
        "measured": [one.choice.name for one in found.measured],
        "asked": [one.choice.name for one in asked.measured],
        "text": str(found),
    }


def alone() -> dict[str, Any]:
    model = DistributedDataParallel(network())
    found = gradients.suggest(model, batch(0, 0)[0])
    return {"same": gradients.apply(model, "double-buffering") is model, "reason": found.reason}


def dies() -> dict[str, str]:
    """The second rank ends in the middle of the exchange; the first one reports what its training gets."""
    model = gradients.apply(DistributedDataParallel(network()), "double-buffering")
    return {"error": refusal(lambda: train(model, lambda: os._exit(9)))}


def train(model: nn.Module, dying: Callable[[], None]) -> None:
    """Train; `dying` is called on the second rank before its fourth backward pass."""
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step, dist.get_rank())
        if step == 3 and dist.get_rank() == 1:
            dying()
        loss.backward()
        optimizer.step()


def dies_with_fp16() -> dict[str, str]:
    """The second rank ends after it has sent its first bucket."""
    model = gradients.apply(DistributedDataParallel(network_of_buckets()), "fp16-small-buckets")
    first = model.module[0].weight
    return {"error": refusal(lambda: train(model, lambda: first.register_hook(lambda _: os._exit(9))))}


def dies_with_powersgd() -> dict[str, str]:
    """The second rank ends between the two sums of an approximation, in a thread of gloo."""
    model = gradients.apply(DistributedDataParallel(network_of_buckets()), "powersgd")
    all_reduce, sums = dist.all_reduce, itertools.count(1)

    def last_sum(*words: Any, **named: Any) -> Any:
        # Biases, the first factors, the second ones.
        return os._exit(9) if next(sums) == 3 else all_reduce(*words, **named)

    return {"error": refusal(lambda: train(model, lambda: setattr(dist, "all_reduce", last_sum)))}


def dies_in_suggest() -> dict[str, str]:
    """The second rank ends while `suggest` measures fp16-small-buckets, after it has sent its first bucket."""
    model, passes, steps = DistributedDataParallel(network_of_buckets()), itertools.count(1), 2
    before = 4 * (3 + steps)  # No exchange, plain, small-buckets, fp16; each warms up with three steps.
    if dist.get_rank() == 1:
        model.module[0].weight.register_hook(lambda _: os._exit(9) if next(passes) == before + 2 else None)
    return {"error": refusal(lambda: gradients.suggest(model, batch(0, dist.get_rank())[0], steps=steps))}


def ends_while_gloo_computes() -> dict[str, bool]:
    """Leave a callback in Python to a thread of gloo, which a model keeps; the interpreter's end comes before its."""
    KEPT.append(DistributedDataParallel(network()))
    has_begun, ends = threading.Event(), threading.Event()
    # The handler that was registered last runs first.
    atexit.register(ends.set)

    def compute(_done: object) -> None:
        has_begun.set()
        ends.wait(60)
        for _ in range(30):
            # This lets other threads run Python, as what gloo's threads do does.
            hashlib.sha256(bytes(1 << 22))

    # A callback for what has ended already would run in this thread.
    time.sleep(0.5 * dist.get_rank())
    work: Any = dist.all_reduce(torch.ones(1), async_op=True)
    work.get_future().then(compute)
    return {"begun": has_begun.wait(60)}


def be_rank(rank: int, ranks: int, directory: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=ranks)
    for name in names:
        print(json.dumps(globals()[name]()), flush=True)
    if not names[0].startswith("dies"):
        time.sleep(0.3)  # examples/fashion_mnist/train.py tells why
        dist.destroy_process_group()


def main(directory: Path, groups: list[str]) -> None:
    """Run one group after the other; ranks are forks, because to import torch takes more CPU time than all they do."""
    for group in groups:
        ranks, _, names = group.partition(":")
        place = directory / names.partition(",")[0]
        place.mkdir()
        children = []
        for rank in range(int(ranks)):
            child = os.fork()
            if child == 0:
                for number, suffix in ((1, "out"), (2, "err")):
                    os.dup2(os.open(place / f"{rank}.{suffix}", os.O_WRONLY | os.O_CREAT), number)
                be_rank(rank, int(ranks), place, names.split(","))
                return  # to the interpreter's end, which is what one test is about
            children.append(child)
        for rank, child in enumerate(children):
            (place / f"{rank}.code").write_text(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
