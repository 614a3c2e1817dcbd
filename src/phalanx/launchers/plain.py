"""exec: starts the plain command once per node or slot, with the variables that frameworks read."""

from __future__ import annotations

from typing import Dict, List, Tuple

from phalanx.launchers.placement import place
from phalanx.node.roster import Roster
from phalanx.runner.process import PreparedJob, Process

NAME = "exec"
SUMMARY = "the plain command on every node, with RANK, WORLD_SIZE and MASTER_ADDR"
ENGINE: Tuple[str, ...] = ()
PROGRAM = ""
OPTIONS: Tuple[str, ...] = ()
RECIPES: Tuple[str, ...] = ()


def processes(job: PreparedJob, roster: Roster) -> List[Process]:
    """Start one process per node, or as many as -n and -N say; ranks are dense and in the roster's order."""
    ranks = place(job, roster, default_per_node=1)
    places = [(node, local) for node, count in ranks.items() for local in range(count)]
    return [_process(job, ranks, rank, node, local) for rank, (node, local) in enumerate(places)]


def _process(job: PreparedJob, ranks: Dict[str, int], rank: int, node: str, local: int) -> Process:
    nodes = list(ranks)
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": sum(ranks.values()),
        "LOCAL_WORLD_SIZE": ranks[node],
        "NODE_RANK": nodes.index(node),
        "MASTER_PORT": job.master_port,
    }
    # One process per node that nobody asked for may start others there, as Lightning does, which would take LOCAL_RANK
    # for the word that all were started for it (LightningEnvironment.creates_processes_externally).
    if job.processes or job.per_node:
        numbers["LOCAL_RANK"] = local
    env = {**{name: str(value) for name, value in numbers.items()}, "MASTER_ADDR": nodes[0]}
    return Process(
        label=str(rank), node=node, argv=job.command, command=job.command, ranks={node: 1}, env=env, is_rank=True
    )
