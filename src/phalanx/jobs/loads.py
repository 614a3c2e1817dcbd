"""The load of the nodes on which jobs run, from their runners on the head; and what is said of it in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from phalanx.jobs import toolbox
from phalanx.jobs.job import ClusterAccess
from phalanx.node.validate import Invalid
from phalanx.runner import rank_progress
from phalanx.runner.files.schema import job_id
from phalanx.runner.load import Load, checked, mean
from phalanx.runner.rank_progress import RankProgress
from phalanx.ssh import head_answers

GIB = 1 << 30
_TIMEOUT_S = 30.0
_MOST_NODES, _MOST_RANKS = 10_000, 65_536


class NodeLoad(NamedTuple):
    """The newest load of a job on one node, `age_s` old, and the most memory that its processes have used there."""

    job: str
    node: str
    age_s: float
    peak_memory: float
    load: Load


class Seen(NamedTuple):
    """What running jobs do: the load of their nodes, and by job how far its ranks are."""

    loads: list[NodeLoad]
    ranks: dict[str, list[RankProgress]]


def loads_of(cluster: ClusterAccess, job: str = "") -> list[NodeLoad]:
    """Return the load of all running jobs, or of this one, on each of their nodes. Raises JobError, ClusterError."""
    return seen(cluster, job).loads


def seen(cluster: ClusterAccess, job: str = "") -> Seen:
    """Return what all running jobs do, or this one. Raises JobError, ClusterError."""
    command = toolbox.command(cluster.shared, "load", job)
    done = toolbox.run(cluster.remote(), cluster.shared, command, timeout_s=_TIMEOUT_S)
    lines = (line for line in done.stdout.splitlines() if line.startswith(b"{"))
    answers = [_job(head_answers.parsed(line)) for line in lines]
    loads = [NodeLoad(answer["job"], **node) for answer in answers for node in answer["nodes"]]
    return Seen(loads, {answer["job"]: answer["ranks"] for answer in answers})


def total(loads: Sequence[NodeLoad]) -> Load:
    """Return the sum over nodes, each counted once; of GPUs' utilisation the mean, of their temperature the highest."""
    jobs = [one.load for one in loads]
    nodes = [one.load for one in {one.node: one for one in loads}.values()]
    of_jobs = {name: sum(getattr(load, name) for load in jobs) for name in ("cores", "memory", "processes")}
    of_nodes = {name: value * len(nodes) for name, value in mean(nodes)._asdict().items() if name not in of_jobs}
    gpus = [load for load in nodes if load.gpus > 0]
    count = sum(load.gpus for load in gpus)
    of_gpus = {
        "gpus": count or min((load.gpus for load in nodes), default=0.0),
        "gpu_busy": sum(load.gpu_busy * load.gpus for load in gpus) / count if count else 0.0,
        "gpu_hottest": max((load.gpu_hottest for load in gpus), default=0.0),
    }
    steps = [load for load in jobs if load.step]
    of_steps = {name: min((getattr(load, name) for load in steps), default=0.0) for name in ("step", "step_rate")}
    return Load(**{**of_jobs, **of_nodes, **of_gpus, **of_steps})


def in_words(load: Load) -> str:
    """Return a line of text about a load."""
    words = [
        f"{load.node_cores:.1f} of {load.node_cores_total:.0f} cores",
        f"{load.node_memory / GIB:.1f} of {load.node_memory_total / GIB:.1f} GiB",
    ]
    return ", ".join([*words, *([gpu] if (gpu := gpus_in_words(load)) else [])])


def gpus_in_words(load: Load) -> str:
    """Return what is known of a node's GPUs; "" if it has none."""
    if load.gpus == 0:
        return ""
    if load.gpus < 0:
        return "nvidia-smi does not answer"
    slowed = f", {load.gpu_slowed:.0f} slowed down by heat or power" if load.gpu_slowed else ""
    errors = f", {load.gpu_errors:.0f} memory errors" if load.gpu_errors else ""
    of = "GPU" if load.gpus == 1 else f"{load.gpus:.0f} GPUs"
    return f"{of} {load.gpu_busy:.0f} % busy, {load.gpu_hottest:.0f} °C{slowed}{errors}"


def _job(answer: dict[str, Any]) -> dict[str, Any]:
    return head_answers.required(answer, _JOB)


def _node(value: Any) -> dict[str, Any]:
    return head_answers.required(head_answers.record(value), _NODE)


def _load(value: Any) -> Load:
    if not isinstance(value, list):
        raise Invalid(f"{value!r:.60} is not a load")
    return checked(value)


def _amount(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1e18:
        raise Invalid(f"{value!r:.60} is not an amount")
    return value


def _rank(value: Any) -> RankProgress:
    return RankProgress(**head_answers.required(head_answers.record(value), _RANK))


_NODE_NAME = head_answers.matching(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
_RANK: dict[str, head_answers.Check] = {
    "rank": head_answers.matching(r"[\w@.+ -]{1,100}"),
    "node": _NODE_NAME,
    "age_s": _amount,
    "progress": rank_progress.checked,
}
_NODE: dict[str, head_answers.Check] = {
    "node": _NODE_NAME,
    **dict.fromkeys(("age_s", "peak_memory"), _amount),
    "load": _load,
}
_JOB: dict[str, head_answers.Check] = {
    "job": job_id,
    "nodes": head_answers.list_of(_node, _MOST_NODES),
    "ranks": head_answers.list_of(_rank, _MOST_RANKS),
}
