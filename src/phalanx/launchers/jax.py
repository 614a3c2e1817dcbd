"""JAX: starts the user's command once per process; `jax.distributed.initialize()` reads its settings from variables."""

from __future__ import annotations

from typing import Dict, List, Tuple

from phalanx.launchers import gpus
from phalanx.launchers.placement import place
from phalanx.node.roster import Roster
from phalanx.runner.process import PreparedJob, Process

NAME = "jax"
SUMMARY = "one process per GPU or slot, so that jax.distributed.initialize() needs no arguments"
ENGINE: Tuple[str, ...] = ()
PROGRAM = ""
OPTIONS: Tuple[str, ...] = ()
RECIPES: Tuple[str, ...] = ("jax",)

# The number of the job's port that is the coordinator's, in process 0.
_COORDINATOR = 0


def processes(job: PreparedJob, roster: Roster) -> List[Process]:
    """Number the processes node by node; process 0 runs JAX's coordinator."""
    placed = place(job, roster)
    each = gpus.per_process(job, roster, placed)
    places = [(node, local) for node, count in placed.items() for local in range(count)]
    return [_process(job, places, number, each) for number in range(len(places))]


def _process(job: PreparedJob, places: List[Tuple[str, int]], number: int, each: int) -> Process:
    node, local = places[number]
    visible = {"JAX_LOCAL_DEVICE_IDS": gpus.numbers(local, each)} if each else {}
    return Process(
        label=str(number),
        node=node,
        argv=job.command,
        command=job.command,
        ranks={node: 1},
        env={**visible, **_environment(job, places, number)},
        is_rank=True,
        ports=() if number else (job.port(_COORDINATOR),),
    )


def _environment(job: PreparedJob, places: List[Tuple[str, int]], number: int) -> Dict[str, str]:
    coordinator = f"{places[0][0]}:{job.port(_COORDINATOR)}"
    return {
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_NUM_PROCESSES": str(len(places)),
        "JAX_PROCESS_ID": str(number),
        # JAX reads the address from its own variable, but count and number only from a system's that it recognizes:
        # jax/_src/clusters/ompi_cluster.py reads Open MPI's variables when the first of these is set to anything.
        "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{coordinator}",
        "OMPI_COMM_WORLD_SIZE": str(len(places)),
        "OMPI_COMM_WORLD_RANK": str(number),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(places[number][1]),
    }
