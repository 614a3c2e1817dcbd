"""PyTorch: runs one torchrun per node; they rendezvous on the first node, and each starts its node's ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Tuple

from phalanx.launchers import gpus
from phalanx.launchers.placement import place
from phalanx.node.roster import Roster
from phalanx.runner.process import PreparedJob, Process, RefusedError, refuse_variables

NAME = "torchrun"
SUMMARY = "torchrun on every node, one rank per slot: PyTorch DDP, FSDP"
ENGINE: Tuple[str, ...] = ()
PROGRAM = "torchrun"
OPTIONS: Tuple[str, ...] = ()
RECIPES: Tuple[str, ...] = ("torch",)

# What torchrun sets for each rank (torch.distributed.run's documentation).
_SETS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
_SETS += ("ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# Without it, Accelerate 1.15 on CPUs, and so transformers' Trainer, takes each process for the only one.
_USES_CPU = "ACCELERATE_USE_CPU"
# Each loss of a node costs one restart of the remaining ranks.
_ELASTIC_RESTARTS = 3
# In seconds: the wait for late nodes once there are enough, and how soon a silent death is noticed (3 × 4).
_RENDEZVOUS = {"last_call_timeout": "5", "keep_alive_interval": "3", "keep_alive_max_attempt": "4"}


def processes(job: PreparedJob, roster: Roster) -> List[Process]:
    """Start one torchrun per node: with a static rendezvous on the first, or with --nodes an elastic one."""
    refuse_variables(job, _SETS)
    job = replace(job, command=_command(job.command))
    if not any(node.gpus for node in roster.nodes) and _USES_CPU not in {*job.env, *job.secrets}:
        return [replace(one, env={**one.env, _USES_CPU: "true"}) for one in _of(job, roster)]
    return _of(job, roster)


def _of(job: PreparedJob, roster: Roster) -> List[Process]:
    if job.nodes_min is not None:
        return _elastic(job, roster)
    ranks = place(job, roster)
    gpus.require_alike(job, roster, ranks)
    return [_torchrun(job, ranks, number, node) for number, node in enumerate(ranks)]


def _torchrun(job: PreparedJob, ranks: Dict[str, int], number: int, node: str) -> Process:
    flags: Dict[str, object] = {
        "nnodes": len(ranks),
        "node-rank": number,
        "nproc-per-node": ranks[node],
        "master-addr": next(iter(ranks)),
        "master-port": job.master_port,
    }
    return _process(job, node, ranks[node], flags, {})


def _elastic(job: PreparedJob, roster: Roster) -> List[Process]:
    fewest, most = job.nodes_min or 1, job.nodes_max or 1
    if len(roster.nodes) < fewest:
        raise RefusedError(
            f"at least {fewest} nodes were requested (--nodes {fewest}:{most}); there are {len(roster.nodes)}.\n"
            "`phalanx nodes` shows which are missing and why.",
            code="too-few-nodes",
        )
    # The usual placement, on at most `most` nodes.
    ranks = place(replace(job, nodes_min=None, nodes_max=None), roster._replace(nodes=roster.nodes[:most]))
    return [_elastic_torchrun(job, node, count, next(iter(ranks))) for node, count in ranks.items()]


def _elastic_torchrun(job: PreparedJob, node: str, count: int, first: str) -> Process:
    rendezvous = {**_RENDEZVOUS, "is_host": str(node == first).lower()}
    flags: Dict[str, object] = {
        "nnodes": f"{job.nodes_min}:{job.nodes_max}",
        "nproc-per-node": count,
        "max-restarts": job.restarts or _ELASTIC_RESTARTS,
        "rdzv-backend": "c10d",
        "rdzv-id": job.id,
        "rdzv-endpoint": f"{first}:{job.master_port}",
        "rdzv-conf": ",".join(f"{name}={value}" for name, value in rendezvous.items()),
        "local-addr": node,
    }
    # Otherwise ranks share the rendezvous's store, and can't be restarted.
    return _process(job, node, count, flags, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})


def _process(job: PreparedJob, node: str, count: int, flags: Dict[str, object], env: Dict[str, str]) -> Process:
    argv = ["torchrun", *(f"--{name}={value}" for name, value in flags.items()), "--no-python"]
    return Process(
        label=f"torchrun@{node}",
        node=node,
        argv=(*argv, *job.keeper("RANK")),
        command=job.command,
        ranks={node: count},
        env=env,
    )


def _command(command: Tuple[str, ...]) -> Tuple[str, ...]:
    """Run `train.py` and `-m pkg.train` with Python, as torchrun does."""
    if command[0] in ("-m", "--module"):
        return ("python3", "-m", *command[1:])
    return ("python3", *command) if command[0].endswith(".py") else command
