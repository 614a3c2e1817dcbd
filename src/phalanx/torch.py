"""Faster gradients for PyTorch's DistributedDataParallel on Ethernet: measure what pays on this network, and apply it.

This file needs PyTorch 2.1 and Python 3.10, and nothing else of phalanx. `phalanx run` sends it with every job, where
`import phalanx.torch` finds it; it may as well be copied.
"""

# No `from __future__ import annotations`: DistributedDataParallel compares the annotations of a hook with types.

import atexit
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch.distributed import BuiltinCommHookType, GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817  (as in PyTorch's documents)
from torch.optim.optimizer import register_optimizer_step_post_hook

_SMALL_MB, _MIB, _WARM_UP_STEPS, _POWER_SGD_RANK = 1, 1 << 20, 3, 4
_LOCAL_STEPS = 4  # Then local SGD averages the weights.
# A choice must be this much faster than plain DDP, and one that costs accuracy than those that cost none.
_WORTH, _WORTH_ITS_PRICE = 1.05, 1.5
_LATE, _EXIT_WITHIN_S, _HAS_NUMPY = "_phalanx_late_gradients", 30.0, find_spec("numpy") is not None
_Loss = Callable[[Any], torch.Tensor]


@dataclass(frozen=True)
class Choice:
    """A way to exchange gradients, and its price in words. `small_buckets`: about one for each layer, sent earlier."""

    name: str
    price: str
    hook: str = ""
    small_buckets: bool = False
    costs_accuracy: bool = False


_FP16 = "rounds gradients to 11 bits; above 65,504 they overflow"
_DELAY = "experimental: every gradient is one step late; check the accuracy"
PLAIN = Choice("plain", "none")
_ALL = (
    PLAIN,
    Choice("small-buckets", "none", small_buckets=True),
    Choice("fp16", _FP16, "fp16"),
    Choice("fp16-small-buckets", _FP16, "fp16", small_buckets=True),
    Choice("bf16-small-buckets", "rounds gradients to 8 bits", "bf16", small_buckets=True),
    Choice("powersgd", "approximates gradients: 0.8 points less on Fashion-MNIST", "powersgd", costs_accuracy=True),
    Choice("double-buffering", _DELAY, "late", costs_accuracy=True),
    Choice("fp16-double-buffering", _DELAY, "late-fp16", costs_accuracy=True),
)
CHOICES = {choice.name: choice for choice in _ALL}
"""Every choice by its name."""
CANDIDATES = tuple(one.name for one in _ALL[1:] if "late" not in one.hook and (one.hook != "powersgd" or _HAS_NUMPY))
"""What `suggest` measures beside plain DDP: nothing experimental. PowerSGD needs NumPy."""


class Measured(NamedTuple):
    """How long a step (forward and backward pass) took with a choice, in seconds."""

    choice: Choice
    step_s: float


@dataclass(frozen=True)
class Suggestion:
    """What `suggest` found: the choice, why, and every measurement, plain DDP first. `str()` is a table for people."""

    choice: Choice
    reason: str
    measured: tuple[Measured, ...] = ()
    compute_s: float = 0.0
    """A step without any exchange."""

    def __str__(self) -> str:
        if not self.measured:
            return f"suggested: {self.choice.name} ({self.reason})"
        plain_s = self.measured[0].step_s
        local_s = self.compute_s + max(0.0, plain_s - self.compute_s) / _LOCAL_STEPS
        rows = [(one.choice.name, one.step_s, one.choice.price) for one in self.measured]
        rows.append((f"local SGD, {_LOCAL_STEPS} steps", local_s, "an estimate; some accuracy"))
        rows.append(("no exchange at all", self.compute_s, ""))
        cells = [f"{name:<24}{took_s * 1e3:>8.1f}{plain_s / took_s:>7.2f}x  {price}" for name, took_s, price in rows]
        answer = str(Suggestion(self.choice, self.reason))
        return "\n".join([f"{'':<24}{'ms/step':>8}{'gain':>8}  price", *(line.rstrip() for line in cells), answer])


def apply(model: DDP, choice: str | Choice | Suggestion, *, scaler: Any = None) -> DDP:
    """Return a DistributedDataParallel of the same network that exchanges gradients as chosen.

    Call it on all ranks, before the first backward pass, and use what it returns. `choice` is a name in CHOICES, or
    what `suggest` returned. A world of one process gets its model back. `scaler` is the GradScaler of the training, if
    it has one: double buffering needs it. Raises TypeError or ValueError for what can't work, on every rank alike.
    """
    ranks, chosen = _ranks(model), _chosen(choice)
    return model if chosen == PLAIN or ranks == 1 else _applied(model, chosen, scaler, is_trained=True)


def finish(model: DDP) -> bool:
    """Put the gradients that double buffering still holds into `.grad`, for one more step of the optimizer.

    Call it on all ranks after the last step. Returns False, and does nothing, if there are none: then take no step.
    """
    return hasattr(model, _LATE) and getattr(model, _LATE).finish()


def suggest(
    model: DDP, batch: Any, *, loss: _Loss | None = None, candidates: Sequence[str] = CANDIDATES, steps: int = 5
) -> Suggestion:
    """Measure some steps with every candidate on the real network, and suggest what pays.

    Call it on all ranks, with a batch of the usual size: the network's argument, or a tuple of arguments. `loss` maps
    the network's output to a scalar (default: the mean of a tensor). Weights, buffers, gradients and random numbers are
    afterwards as before. All ranks get the same answer, from the slowest rank's times. Raises TypeError or ValueError
    for a model, batch or candidate that can't be measured.
    """
    ranks, chosen = _ranks(model), [_chosen(name) for name in candidates]
    if ranks == 1:
        return Suggestion(PLAIN, "there is one process, so nothing is exchanged")
    if _has_sparse_gradients(model.module):
        return Suggestion(PLAIN, "the network has sparse gradients, which only plain DDP exchanges")
    stopwatch = _Stopwatch(model, batch, loss or _mean, steps)
    with _unchanged(model.module):
        (compute_s,) = stopwatch.medians_s([model], model.no_sync)
        measured = [stopwatch.measured(choice)[0] for choice in (PLAIN, *chosen)]
        best, reason = best_of(measured)
        if best != PLAIN:
            plain, again = stopwatch.measured(PLAIN, best)
            if plain.step_s < again.step_s * _WORTH:
                best, reason = PLAIN, "nothing is reliably faster"
    return Suggestion(best, reason, tuple(measured), compute_s)


def best_of(measured: Sequence[Measured]) -> tuple[Choice, str]:
    """Return the fastest choice that is worth its price, and the reason; the first one measured is plain DDP."""
    plain_s = measured[0].step_s
    free, free_s = min((one for one in measured if not one.choice.costs_accuracy), key=lambda one: one.step_s)
    fast, fast_s = min(measured, key=lambda one: one.step_s)
    if fast.costs_accuracy and free_s >= fast_s * _WORTH_ITS_PRICE:
        return fast, f"{free_s / fast_s:.1f} times as fast as what costs no accuracy"
    if plain_s < free_s * _WORTH:
        return PLAIN, "nothing is much faster"
    return free, f"{plain_s / free_s:.2f} times as fast as plain DDP"


class _Stopwatch:
    """Measures steps of a model, in the same way on all ranks."""

    def __init__(self, model: DDP, batch: Any, loss: _Loss, steps: int) -> None:
        self._model, self._loss, self._steps = model, loss, steps
        self._arguments = batch if isinstance(batch, (tuple, list)) else (batch,)
        self._device = next(model.parameters()).device

    def measured(self, *choices: Choice) -> list[Measured]:
        """Measure choices whose steps alternate."""
        models = [_applied(self._model, choice) for choice in choices]
        medians_s = self.medians_s(models)
        for model in models:
            finish(model)
        return [Measured(*one) for one in zip(choices, medians_s, strict=True)]

    def medians_s(self, models: Sequence[DDP], mode: Callable[[], Any] = nullcontext) -> list[float]:
        """Return each model's median step, of the slowest rank; the models take turns."""
        for model in models:
            for _ in range(_WARM_UP_STEPS):
                self._step_s(model, mode)
        rounds = [[self._step_s(model, mode) for model in models] for _ in range(self._steps)]
        slowest = torch.tensor(rounds, dtype=torch.float64, device=self._device).quantile(0.5, dim=0)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=self._model.process_group)
        return slowest.tolist()

    def _step_s(self, model: DDP, mode: Callable[[], Any]) -> float:
        began_s = self._now_s()
        with mode():
            self._loss(model(*self._arguments)).backward()
        took_s = self._now_s() - began_s
        model.zero_grad(set_to_none=True)
        return took_s

    def _now_s(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def _mean(output: Any) -> torch.Tensor:
    if not isinstance(output, torch.Tensor):
        raise TypeError(f"the network returns a {type(output).__name__}: pass `loss`, which makes a scalar of it")
    return output.float().mean()


@contextmanager
def _unchanged(network: torch.nn.Module) -> Iterator[None]:
    """Restore gradients, buffers and random numbers after the block."""
    with torch.random.fork_rng(), torch.enable_grad(), _same_buffers(network) as afterwards:
        for parameter in network.parameters():
            afterwards.callback(setattr, parameter, "grad", parameter.grad)
        network.zero_grad(set_to_none=True)
        yield


def _same_buffers(network: torch.nn.Module) -> ExitStack:
    """Return what restores the buffers after its block."""
    afterwards = ExitStack()
    for buffer in network.buffers():
        afterwards.callback(buffer.data.copy_, buffer.clone())
    return afterwards


def _chosen(choice: str | Choice | Suggestion) -> Choice:
    found = CHOICES.get(choice) if isinstance(choice, str) else choice
    if found is None:
        raise ValueError(f"there is no choice '{choice}': choose among {', '.join(CHOICES)}")
    return found.choice if isinstance(found, Suggestion) else found


def _has_sparse_gradients(network: torch.nn.Module) -> bool:
    return any(isinstance(one, torch.nn.Embedding | torch.nn.EmbeddingBag) and one.sparse for one in network.modules())


def _ranks(model: DDP) -> int:
    if not isinstance(model, DDP):
        raise TypeError(f"the model is a {type(model).__name__}: wrap it in DistributedDataParallel first")
    return dist.get_world_size(model.process_group)


def _applied(model: DDP, choice: Choice, scaler: Any = None, is_trained: bool = False) -> Any:
    """Return another DistributedDataParallel with this choice. Raises ValueError for what would go wrong silently."""
    if getattr(model, "_delay_all_reduce_params", None):
        raise ValueError(f"{choice.name}: the model has delay_all_reduce_named_params, which only plain DDP exchanges")
    if model._get_ddp_logging_data().get("comm_hook"):
        raise ValueError(f"{choice.name}: the model has a communication hook already")
    if choice.hook and _has_sparse_gradients(model.module):
        raise ValueError(f"{choice.name}: the network has sparse gradients, which only plain DDP exchanges")
    if choice.hook.startswith("late") and model.find_unused_parameters:
        # DDP leaves the gradient of a parameter that this step did not use as it is, so the late one would be lost.
        raise ValueError(f"{choice.name}: the model has find_unused_parameters, whose late gradients would be lost")
    made = _with_buckets(model, choice)
    if choice.hook == "fp16":
        # PyTorch's in C++: what it computes in threads of gloo never waits for Python.
        made._register_builtin_comm_hook(BuiltinCommHookType.FP16_COMPRESS)
    elif choice.hook == "bf16":
        # DDP refuses the hook by its name where there is no NCCL, although gloo can sum bfloat16.
        made.register_comm_hook(model.process_group, lambda group, bucket: bf16_compress_hook(group, bucket))
    elif choice.hook == "powersgd":
        made.register_comm_hook(_PowerSGD(model), _PowerSGD.exchange)
    elif choice.hook:
        late = _Late(model, torch.float16 if choice.hook == "late-fp16" else None, scaler, is_trained)
        setattr(made, _LATE, late)
        made.register_comm_hook(late, _Late.exchange)
    return made


def _with_buckets(model: DDP, choice: Choice) -> DDP:
    """Return a DistributedDataParallel with the same settings and the choice's buckets; it replaces the first."""
    names = signature(DDP).parameters.keys() - {"device_mesh"}  # The process group is the mesh's.
    settings = {name: getattr(model, name) for name in names if hasattr(model, name)}
    if "forward_sync_buffers" in settings:
        del settings["broadcast_buffers"]  # Its old name.
    # Views need no copy after the exchange. Late gradients have tensors of their own.
    settings["gradient_as_bucket_view"] |= not choice.hook.startswith("late")
    # A new DistributedDataParallel may give all ranks the first one's buffers.
    with _same_buffers(model.module):
        return DDP(**settings, **_buckets(model, choice))


def _buckets(model: DDP, choice: Choice) -> dict[str, Any]:
    """Return the settings of the choice's buckets, or else the model's own."""
    if choice.small_buckets:
        return {"bucket_cap_mb": _SMALL_MB}
    if choice.hook == "powersgd":
        # On gloo it aborts with more than one bucket.
        return {"bucket_cap_mb": 1 + sum(one.numel() * one.element_size() for one in model.parameters()) / _MIB}
    if caps := getattr(model, "bucket_bytes_cap_list", None):
        return {"bucket_cap_mb_list": [size / _MIB for size in caps]}
    # By default, the first bucket is smaller than the others.
    is_default = getattr(model, "bucket_bytes_cap_default", False)
    return {} if is_default else {"bucket_cap_mb": model.bucket_bytes_cap / _MIB}


class _PowerSGD:
    """PyTorch's PowerSGD, but error feedback in place: its own allocates all gradients' size twice in each step."""

    def __init__(self, model: DDP) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as pytorch  # It may need NumPy.

        self._hook, group = pytorch.powerSGD_hook, model.process_group
        self._state = pytorch.PowerSGDState(group, _POWER_SGD_RANK, start_powerSGD_iter=2, use_error_feedback=False)
        self._errors: dict[int, torch.Tensor] = {}

    def exchange(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Begin to average a bucket's gradients and what former approximations left out; the first steps are plain."""
        if self._state.iter < self._state.start_powerSGD_iter:
            return self._hook(self._state, bucket)
        own, index = bucket.buffer(), bucket.index()
        self._errors[index] = error = self._errors[index].add_(own) if index in self._errors else own.clone()
        own.copy_(error)
        return self._hook(self._state, bucket).then(lambda done: (done.value(), error.sub_(done.value()))[0])


class _Sent(NamedTuple):
    """A bucket's gradients on their way, the scale of their loss, and each parameter with its part of the bucket."""

    average: Future[torch.Tensor]
    scale: float
    views: list[tuple[torch.Tensor, torch.Tensor]]

    def at_scale(self, scale: float) -> Future[torch.Tensor]:
        factor = scale / self.scale
        return self.average if factor == 1.0 else self.average.then(lambda done: done.value() * factor)


class _Late:
    """Double buffering. `dtype` travels, or the gradients' own; `is_trained`: an optimizer uses those of every pass."""

    def __init__(self, model: DDP, dtype: torch.dtype | None, scaler: Any, is_trained: bool) -> None:
        self._dtype, self._scaler, self._is_trained, self._ranks = dtype, scaler, is_trained, _ranks(model)
        # A group of its own: buffers that the next forward pass broadcasts must not wait behind gradients.
        self._group = dist.new_group(dist.get_process_group_ranks(model.process_group), use_local_synchronization=True)
        self._sent: dict[int, _Sent] = {}
        self._is_first, self._began, self._has_stepped, self._last_scale = True, False, False, self._scale()
        self._parameters = {id(parameter) for parameter in model.parameters()}
        if is_trained:
            # PyTorch keeps what it calls for ever; this one must not keep the model.
            note = WeakMethod(self._note_step)
            register_optimizer_step_post_hook(lambda *step: (found := note()) and found(*step))

    def exchange(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Begin to average a bucket's gradients, and return those of the step before, which had a whole step's time.

        The first step is plain, because DDP arranges its buckets again after it. The second returns zeros.
        """
        if bucket.index() == 0:
            self._begin()
        sent = self._send(bucket)
        if self._is_first:
            return sent.average
        last, self._sent[bucket.index()] = self._sent.get(bucket.index()), sent
        if last is not None:
            return last.at_scale(sent.scale)
        nothing: Future[torch.Tensor] = Future()
        nothing.set_result(torch.zeros_like(bucket.buffer()))
        return nothing

    def _begin(self) -> None:
        """Begin a backward pass. Raises RuntimeError after one whose gradients no optimizer has used."""
        # A scaler that has reduced its scale has skipped the step.
        scale, self._last_scale = self._last_scale, self._scale()
        if self._is_trained and self._began and not self._has_stepped and self._last_scale >= scale:
            raise RuntimeError("double buffering: two backward passes for one step lose gradients: use model.no_sync()")
        self._is_first, self._began, self._has_stepped = not self._began, True, False

    def _send(self, bucket: GradBucket) -> _Sent:
        """Begin to average a copy of the bucket's gradients over all ranks."""
        own = bucket.buffer()
        copy = own.to(self._dtype or own.dtype, copy=True).div_(self._ranks)
        work: Any = dist.all_reduce(copy, group=self._group, async_op=True)
        average = work.get_future().then(lambda done: done.value()[0].to(own.dtype))
        return _Sent(average, self._scale(), list(zip(bucket.parameters(), bucket.gradients(), strict=True)))

    def finish(self) -> bool:
        for sent in self._sent.values():
            average = sent.at_scale(self._scale()).wait()
            for parameter, view in sent.views:
                # Buckets begin at the beginning of their memory.
                parameter.grad = average.as_strided(view.size(), view.stride(), int(view.storage_offset())).clone()
        found, self._sent, self._has_stepped = bool(self._sent), {}, True
        return found

    def _scale(self) -> float:
        return self._scaler.get_scale() if self._scaler is not None else 1.0

    def _note_step(self, optimizer: torch.optim.Optimizer, _arguments: Any, _keywords: Any) -> None:
        """Note a step of any optimizer that has one of the model's parameters."""
        if any(id(one) in self._parameters for group in optimizer.param_groups for one in group["params"]):
            self._has_stepped = True


@atexit.register
def _let_gloo_rest() -> None:
    """Wait until gloo's threads sleep: one that has a Python object aborts an interpreter's end (pytorch #190489)."""
    last, until_s = [""], time.monotonic() + _EXIT_WITHIN_S
    while time.monotonic() < until_s:
        time.sleep(0.001)  # Without Python's lock, for which such a thread may wait.
        with suppress(OSError):  # A thread has just ended.
            texts = [file.read_text() for file in Path("/proc/self/task").glob("*/status")]
            # Their states, and how often each has run: one that has not run since the last look sleeps.
            looks = [one.partition("State:\t")[2] for one in texts if "pt_gloo_runloop" in one]
            before, last = last, [look[0] + look.partition("voluntary")[2] for look in looks]
            if last == before and not any(look.startswith("R") for look in looks):
                return
