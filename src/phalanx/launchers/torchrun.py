"""PyTorch: one torchrun per node, which meet on the first node and start the ranks there."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Tuple

from phalanx.launchers.placement import place
from phalanx.node.process import JobDescription, Process
from phalanx.node.roster import Roster

NAME = "torchrun"
SUMMARY = "torchrun on every node, one rank per slot: PyTorch DDP, FSDP"
ENGINE: Tuple[str, ...] = ()


def processes(job: JobDescription, roster: Roster) -> List[Process]:
    """One torchrun per node, with a static rendezvous on the first one."""
    job = replace(job, command=_command(job.command))
    ranks = place(job, roster)
    return [_torchrun(job, ranks, number, node) for number, node in enumerate(ranks)]


def _torchrun(job: JobDescription, ranks: Dict[str, int], number: int, node: str) -> Process:
    flags = {
        "nnodes": len(ranks),
        "node-rank": number,
        "nproc-per-node": ranks[node],
        "master-addr": next(iter(ranks)),
        "master-port": job.master_port,
    }
    argv = ["torchrun", *(f"--{name}={value}" for name, value in flags.items()), "--no-python"]
    return Process(
        label=f"torchrun@{node}",
        node=node,
        argv=(*argv, *job.keeper("RANK")),
        command=job.command,
        ranks={node: ranks[node]},
    )


def _command(command: Tuple[str, ...]) -> Tuple[str, ...]:
    """`torchrun train.py` runs train.py with Python; so does `-- train.py` here."""
    return ("python3", *command) if command[0].endswith(".py") else command
