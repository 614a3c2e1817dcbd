"""Which GPUs of its node each process is given: one each, unless there are fewer processes than GPUs."""

from __future__ import annotations

from typing import Dict, Mapping

from phalanx.node.roster import Roster
from phalanx.runner.process import JobDescription, RefusedError

_ASK_FOR_FEWER = "Each process needs one: ask for fewer with -N, or set `slots:` in phalanx.yaml."
_ASK_FOR_MORE = (
    "Each process needs one of those that were granted: ask for more (slurm: --via-option --gpus-per-task=1)."
)


def per_process(job: JobDescription, roster: Roster, placed: Mapping[str, int]) -> int:
    """GPUs for each process, the same number everywhere; 0 on nodes without GPUs. `placed` is what `place` said.

    Raises RefusedError as `require_alike` does, and when there are more processes than GPUs.
    """
    require_alike(job, roster, placed)
    gpus = _counts(roster, placed)
    crowded = next((name for name in placed if placed[name] > gpus[name] and any(gpus.values())), None)
    if crowded:
        has = f"{gpus[crowded]} GPU" + ("" if gpus[crowded] == 1 else "s")
        raise RefusedError(
            f"{crowded} was to run {placed[crowded]} processes and has {has}\n"
            + (_ASK_FOR_MORE if job.devices else _ASK_FOR_FEWER)
        )
    return min(gpus.values()) // max(placed.values())


def require_alike(job: JobDescription, roster: Roster, placed: Mapping[str, int]) -> None:
    """Raises RefusedError when the nodes differ in their GPUs and -N doesn't say what is meant."""
    gpus = _counts(roster, placed)
    fewest, most = min(gpus, key=lambda name: gpus[name]), max(gpus, key=lambda name: gpus[name])
    if gpus[fewest] != gpus[most] and job.per_node is None:
        raise RefusedError(
            f"the nodes differ in their GPUs: {most} has {gpus[most]}, {fewest} has {gpus[fewest]}\n"
            f"Say how many processes every node is to have with -N ({gpus[fewest] or 1} at most)."
        )


def _counts(roster: Roster, placed: Mapping[str, int]) -> Dict[str, int]:
    return {node.name: node.gpus for node in roster.nodes if node.name in placed}


def numbers(local: int, each: int) -> str:
    """The GPUs of the local-th process of a node, counted from 0 among those that the job has there: "2,3"."""
    return ",".join(map(str, _own(local, each)))


def visible(job: JobDescription, node: str, local: int, each: int) -> str:
    """The same as CUDA_VISIBLE_DEVICES has them: of all GPUs of the node, where a batch scheduler granted some."""
    granted = job.devices.get(node)
    return ",".join(granted[number] for number in _own(local, each)) if granted else numbers(local, each)


def _own(local: int, each: int) -> range:
    return range(local * each, (local + 1) * each)
