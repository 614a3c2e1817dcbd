"""What the soak test does to a job, and what that job must then say about its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.soak_cluster import NODES, Seen, SoakCluster, parent_of, verb_of, words_of

# How often each is drawn; the last two take a recipe's environment, and long to start.
LAUNCHERS = {"mpi": 8, "torchrun": 4, "exec": 6, "dmlc": 6, "tensorflow": 4, "jax": 4, "deepspeed": 1, "ray": 1}
RECIPES = ("deepspeed", "ray")
# Two of the four nodes, for engines that take seconds of each core before they begin; all are swept.
ON_TWO_NODES = ("torchrun", "deepspeed", "ray")
_WITH_KEEPERS = ("mpi", "torchrun", "deepspeed")
# What of an engine runs on each node.
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
    """How it is done (`strike` returns when it happened, None: nothing was there), and what the job must then say.

    One of `words` is in the message, and the victim's node with it when `names_node`; within_s is from the strike to
    the job's final state on a machine that is not busy with anything else.
    """

    strike: Callable[[SoakCluster, Trial, str], float | None]
    states: tuple[str, ...]
    words: tuple[str, ...]
    within_s: float
    launchers: tuple[str, ...] = tuple(LAUNCHERS)
    names_node: bool = True
    breaks_node: bool = False
    weight: int = 4


def _rank(cluster: SoakCluster, trial: Trial, job_id: str) -> float | None:
    return cluster.kill(trial.node, lambda one: one.job == job_id and one.words[:2] == ("python", "rank.py"))


def _starter(cluster: SoakCluster, trial: Trial, job_id: str) -> float | None:
    """The starter or its guard, whichever is seen first: of two processes that look the same, one is killed."""
    return cluster.kill(trial.node, lambda one: verb_of(one.words) == ("starter", job_id))


def _keeper(cluster: SoakCluster, trial: Trial, job_id: str) -> float | None:
    return cluster.kill(trial.node, lambda one: one.job == job_id and "keeper.py" in one.words[:3])


def _connection(cluster: SoakCluster, trial: Trial, job_id: str) -> float | None:
    """The head's ssh to this node: the starter there lives, and hears that its runner is gone."""
    return cluster.kill(NODES[0], lambda one: one.words[0] == "ssh" and trial.node in one.words and job_id in one.line)


def _daemon(cluster: SoakCluster, trial: Trial, job_id: str) -> float | None:
    def chosen(one: Seen) -> bool:
        return one.job == job_id and word in one.words[:3]

    word = _DAEMONS[trial.launcher]
    return cluster.kill(trial.node, chosen)


def _mpiexec(cluster: SoakCluster, _trial: Trial, job_id: str) -> float | None:
    return cluster.kill(NODES[0], lambda one: one.job == job_id and one.words[0] in ("mpiexec", "orterun"))


def _runner(cluster: SoakCluster, _trial: Trial, job_id: str) -> float | None:
    """The child: its parent, which only settles the job after it, looks the same."""
    words = ("submit", job_id)
    return cluster.kill(NODES[0], lambda one: verb_of(one.words) == words == verb_of(words_of(parent_of(one.pid))))


def _stop(cluster: SoakCluster, _trial: Trial, job_id: str) -> float | None:
    struck = time.time()
    cluster.phalanx("stop", job_id)
    return struck


def _node_clean(cluster: SoakCluster, trial: Trial, _job_id: str) -> float | None:
    return cluster.fault({"kill": {"instance_id": cluster.nodes()[trial.node]["instance_id"]}})


def _head(cluster: SoakCluster, _trial: Trial, _job_id: str) -> float | None:
    return cluster.fault({"kill": {"instance_id": cluster.nodes()[NODES[0]]["instance_id"]}})


def _node_silent(cluster: SoakCluster, trial: Trial, _job_id: str) -> float | None:
    instance = cluster.nodes()[trial.node]["instance_id"]
    return cluster.fault({"kill": {"instance_id": instance, "silent": True, "noticed_after_s": 20}})


def _partition(cluster: SoakCluster, trial: Trial, _job_id: str) -> float | None:
    return cluster.fault({"partition": {"instance_id": cluster.nodes()[trial.node]["instance_id"], "cut": True}})


FAILED, STOPPED, LOST = ("failed",), ("stopped",), ("lost",)
GONE = ("was lost", "can't be reached")
_KILLED = ("was ended by SIGKILL",)
FAULTS = {
    "rank": Fault(_rank, FAILED, _KILLED, 5),
    "starter": Fault(_starter, FAILED, GONE, 5),
    "connection": Fault(_connection, FAILED, GONE, 5),
    # Killed before it has begun its rank, it is a failed child of the engine's and nothing more.
    "keeper": Fault(_keeper, FAILED, (*_KILLED, "torchrun@", "deepspeed@", "mpiexec on"), 5, _WITH_KEEPERS),
    "daemon": Fault(_daemon, FAILED, _KILLED, 5, tuple(_DAEMONS)),
    "mpiexec": Fault(_mpiexec, FAILED, ("mpiexec",), 5, ("mpi",), names_node=False, weight=2),
    "runner": Fault(_runner, LOST, ("runner died",), 5, names_node=False),
    # Typed and followed, and struck within its first 0.6 s: while it is dialled, checked or about to begin.
    "runner, early": Fault(_runner, LOST, ("runner died",), 5, names_node=False),
    "head, early": Fault(_head, LOST, ("head lost",), 90, names_node=False, breaks_node=True, weight=2),
    "stop": Fault(_stop, STOPPED, ("on request",), 10, names_node=False),
    "cli": Fault(_stop, STOPPED, ("on request",), 10, names_node=False, weight=2),
    "ctrl-c": Fault(_stop, STOPPED, ("on request",), 10, names_node=False, weight=2),
    "node, clean": Fault(_node_clean, FAILED, GONE, 15, breaks_node=True, weight=2),
    "node, silent": Fault(_node_silent, FAILED, GONE, 15, breaks_node=True, weight=2),
    "partition": Fault(_partition, FAILED, GONE, 15, breaks_node=True, weight=2),
}
# The head has no connection to itself and no orted of its own; its death is another story (the next head tells its
# jobs as lost).
NEVER_ON_THE_HEAD = ("connection",)


# Struck as soon as the job is known, after a fifth of the trial's delay.
EARLY = ("runner, early", "head, early")


def possible_nodes(fault: str, launcher: str) -> tuple[str, ...]:
    """Where this can be done to a job of this launcher."""
    if fault in EARLY:
        return NODES[:1]
    if (fault, launcher) == ("rank", "ray"):
        return NODES[:1]  # the driver's place
    nodes = NODES[:2] if launcher in ON_TWO_NODES else NODES
    not_there = fault in NEVER_ON_THE_HEAD or (fault == "daemon" and launcher == "mpi")
    return nodes[1:] if FAULTS[fault].breaks_node or not_there else nodes
