"""The faults of the soak test, and how a job must report its end after each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import soak_phases
from benchmarks.soak_cluster import NODES, Seen, SoakCluster, is_runner, verb_of

# How often each is drawn; the last two take long to start.
LAUNCHERS = {"mpi": 8, "torchrun": 4, "exec": 6, "dmlc": 6, "tensorflow": 4, "jax": 4, "deepspeed": 1, "ray": 1}
RECIPES = {"dmlc": "mxnet", "tensorflow": "tensorflow", "jax": "jax", "deepspeed": "deepspeed", "ray": "ray"}
# What the ranks import, as the jobs of users do. DeepSpeed, Ray and torchrun import theirs themselves.
IMPORTS = {"dmlc": "mxnet", "tensorflow": "tensorflow", "jax": "jax"}
# These run on two of the four nodes, because they use seconds of CPU time to start; all nodes are swept.
ON_TWO_NODES = ("torchrun", *RECIPES)
_WITH_KEEPERS = ("mpi", "torchrun", "deepspeed")
# The engine's daemon on each node.
_DAEMONS = {"mpi": "orted", "torchrun": "torchrun", "deepspeed": "deepspeed", "ray": "ray"}


@dataclass(frozen=True)
class Trial:
    """What is killed, on which node, and how long after the job was submitted."""

    number: int
    launcher: str
    fault: str
    node: str
    delay_s: float


@dataclass(frozen=True)
class Fault:
    """A fault: `strike` causes it and returns when (None: there was nothing to kill).

    The job's message must contain one of `messages` and, with `names_node`, the victim's node. within_s is from the
    fault to the job's final state on a machine that is not busy with anything else.
    """

    strike: Callable[[SoakCluster, Trial, str], float | None]
    states: tuple[str, ...]
    messages: tuple[str, ...]
    within_s: float
    launchers: tuple[str, ...] = tuple(LAUNCHERS)
    names_node: bool = True
    breaks_node: bool = False
    weight: int = 4


def _rank(cluster: SoakCluster, trial: Trial, job_id: str) -> float | None:
    return cluster.kill(trial.node, lambda one: one.job == job_id and one.argv[:2] == ("python", "rank.py"))


def _starter(cluster: SoakCluster, trial: Trial, job_id: str) -> float | None:
    """Kill the starter or its guard, whichever is found first: both have the same command line."""
    return cluster.kill(trial.node, lambda one: verb_of(one.argv) == ("starter", job_id))


def _keeper(cluster: SoakCluster, trial: Trial, job_id: str) -> float | None:
    return cluster.kill(trial.node, lambda one: one.job == job_id and "keeper.py" in one.argv[:3])


def _connection(cluster: SoakCluster, trial: Trial, job_id: str) -> float | None:
    """Kill the head's ssh to this node: the starter there survives and notices that its runner is gone."""
    return cluster.kill(NODES[0], lambda one: one.argv[0] == "ssh" and trial.node in one.argv and job_id in one.line)


def _daemon(cluster: SoakCluster, trial: Trial, job_id: str) -> float | None:
    def chosen(one: Seen) -> bool:
        return one.job == job_id and word in one.argv[:3]

    word = _DAEMONS[trial.launcher]
    return cluster.kill(trial.node, chosen)


def _mpiexec(cluster: SoakCluster, _trial: Trial, job_id: str) -> float | None:
    return cluster.kill(NODES[0], lambda one: one.job == job_id and one.argv[0] in ("mpiexec", "orterun"))


def _runner(cluster: SoakCluster, _trial: Trial, job_id: str) -> float | None:
    return cluster.kill(NODES[0], lambda one: is_runner(one, job_id))


def _stop(cluster: SoakCluster, _trial: Trial, job_id: str) -> float | None:
    struck = time.time()
    cluster.phalanx("stop", job_id)
    return struck


def _node_clean(cluster: SoakCluster, trial: Trial, _job_id: str) -> float | None:
    return cluster.fault({"kill": {"instance_id": cluster.nodes()[trial.node]["instance_id"]}})


def _at_phase(cluster: SoakCluster, trial: Trial, job_id: str) -> float | None:
    return soak_phases.strike(cluster, trial.fault, job_id)


def _node_silent(cluster: SoakCluster, trial: Trial, _job_id: str) -> float | None:
    instance = cluster.nodes()[trial.node]["instance_id"]
    return cluster.fault({"kill": {"instance_id": instance, "silent": True, "noticed_after_s": 20}})


def _partition(cluster: SoakCluster, trial: Trial, _job_id: str) -> float | None:
    return cluster.fault({"partition": {"instance_id": cluster.nodes()[trial.node]["instance_id"], "cut": True}})


_HEAD_BACK_WITHIN_S = 120
FAILED, STOPPED, LOST = ("failed",), ("stopped",), ("lost",)
GONE = ("was lost", "can't be reached")
_KILLED = ("was ended by SIGKILL",)
FAULTS = {
    "rank": Fault(_rank, FAILED, _KILLED, 5),
    "starter": Fault(_starter, FAILED, GONE, 5),
    "connection": Fault(_connection, FAILED, GONE, 5),
    # A keeper that is killed before it has started its rank is merely a failed child of the engine.
    "keeper": Fault(_keeper, FAILED, (*_KILLED, "torchrun@", "deepspeed@", "mpiexec on"), 5, _WITH_KEEPERS),
    "daemon": Fault(_daemon, FAILED, _KILLED, 5, tuple(_DAEMONS)),
    "mpiexec": Fault(_mpiexec, FAILED, ("mpiexec",), 5, ("mpi",), names_node=False, weight=2),
    "runner": Fault(_runner, LOST, ("runner died",), 5, names_node=False),
    "stop": Fault(_stop, STOPPED, ("on request",), 10, names_node=False),
    "cli": Fault(_stop, STOPPED, ("on request",), 10, names_node=False, weight=2),
    "ctrl-c": Fault(_stop, STOPPED, ("on request",), 10, names_node=False, weight=2),
    "node, clean": Fault(_node_clean, FAILED, GONE, 15, breaks_node=True, weight=2),
    "node, silent": Fault(_node_silent, FAILED, GONE, 15, breaks_node=True, weight=2),
    "partition": Fault(_partition, FAILED, GONE, 15, breaks_node=True, weight=2),
}
# The head has no connection to itself and no orted of its own; when it dies, the next head reports its jobs as lost.
NEVER_ON_THE_HEAD = ("connection",)


def _at(victim: str, phase: str) -> Fault:
    """A death at a phase of the job, which its user follows."""
    states = LOST + ("not taken",) * soak_phases.PHASES[phase].may_be_refused + STOPPED * (phase == "end")
    messages = ("runner died", "head lost", *soak_phases.REFUSALS, *(("on request",) if phase == "end" else ()))
    is_head = victim == soak_phases.HEAD
    launchers = ("exec",) if phase == "environment" else tuple(LAUNCHERS)
    within_s = _HEAD_BACK_WITHIN_S if is_head else 10
    return Fault(_at_phase, states, messages, within_s, launchers, names_node=False, breaks_node=is_head, weight=1)


FAULTS.update(
    {f"{victim} at {phase}": _at(victim, phase) for phase in soak_phases.PHASES for victim in ("runner", "head")}
)


def possible_nodes(fault: str, launcher: str) -> tuple[str, ...]:
    """Return the nodes where this fault is possible for a job of this launcher."""
    if soak_phases.named(fault):
        return NODES[:1]
    if (fault, launcher) == ("rank", "ray"):
        return NODES[:1]  # the driver's node
    nodes = NODES[:2] if launcher in ON_TWO_NODES else NODES
    not_there = fault in NEVER_ON_THE_HEAD or (fault == "daemon" and launcher == "mpi")
    return nodes[1:] if FAULTS[fault].breaks_node or not_there else nodes
