"""Assigns each process its GPUs: one each, or more when there are fewer processes than GPUs."""

from __future__ import annotations

from typing import Dict, Mapping

from phalanx.node.roster import Roster
from phalanx.runner.process import PreparedJob, RefusedError

_REQUEST_FEWER = "Each process needs one: request fewer with -N, or set `slots:` in phalanx.yaml."
_REQUEST_MORE = "Each process needs one of the granted GPUs: request more (slurm: --via-option --gpus-per-task=1)."


def per_process(job: PreparedJob, roster: Roster, placed: Mapping[str, int]) -> int:
    """Return the number of GPUs per process, the same everywhere; 0 without GPUs. `placed` is the result of `place`.

    Raises RefusedError as `require_alike` does, and when there are more processes than GPUs.
    """
    require_alike(job, roster, placed)
    gpus = _counts(roster, placed)
    crowded = next((name for name in placed if placed[name] > gpus[name] and any(gpus.values())), None)
    if crowded:
        has = f"{gpus[crowded]} GPU" + ("" if gpus[crowded] == 1 else "s")
        raise RefusedError(
            f"{crowded} would run {placed[crowded]} processes but has {has}\n"
            + (_REQUEST_MORE if job.devices else _REQUEST_FEWER),
            code="too-few-gpus",
        )
    return min(gpus.values()) // max(placed.values())


def require_alike(job: PreparedJob, roster: Roster, placed: Mapping[str, int]) -> None:
    """Raise RefusedError when the nodes have different numbers of GPUs and -N is not given."""
    gpus = _counts(roster, placed)
    fewest, most = min(gpus, key=lambda name: gpus[name]), max(gpus, key=lambda name: gpus[name])
    if gpus[fewest] != gpus[most] and job.per_node is None:
        raise RefusedError(
            f"the nodes differ in their GPUs: {most} has {gpus[most]}, {fewest} has {gpus[fewest]}\n"
            f"Set the number of processes per node with -N ({gpus[fewest] or 1} at most).",
            code="unequal-gpus",
        )


def _counts(roster: Roster, placed: Mapping[str, int]) -> Dict[str, int]:
    return {node.name: node.gpus for node in roster.nodes if node.name in placed}


def numbers(local: int, each: int) -> str:
    """Return the GPUs of a node's local-th process, counted from 0 among the job's GPUs there, such as "2,3"."""
    return ",".join(map(str, _own(local, each)))


def visible(job: PreparedJob, node: str, local: int, each: int) -> str:
    """Return them as in CUDA_VISIBLE_DEVICES: among all GPUs of the node, if a batch scheduler granted some."""
    granted = job.devices.get(node)
    return ",".join(granted[number] for number in _own(local, each)) if granted else numbers(local, each)


def _own(local: int, each: int) -> range:
    return range(local * each, (local + 1) * each)
