"""DeepSpeed: runs its launcher once per node with the addresses of the others, so it needs neither ssh nor pdsh."""

from __future__ import annotations

import shlex
from typing import Dict, List, Tuple

from phalanx.launchers import gpus
from phalanx.launchers.placement import place
from phalanx.node.roster import Roster
from phalanx.runner.process import PreparedJob, Process, RefusedError, refuse_variables

NAME = "deepspeed"
SUMMARY = "deepspeed on every node, one rank per GPU or slot"
ENGINE: Tuple[str, ...] = ()
PROGRAM = "deepspeed"
OPTIONS: Tuple[str, ...] = ("deepspeed-flags",)
RECIPES: Tuple[str, ...] = ("deepspeed",)

# What deepspeed/launcher/launch.py sets for every rank.
_SETS = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"),
)

# Passes the GPUs that a node's ranks were granted through DeepSpeed, which would give them the first ones.
_GRANTED = "PHALANX_GPUS"

# The number of the job's port that is rank 0's, where all ranks meet.
_MASTER = 0


def processes(job: PreparedJob, roster: Roster) -> List[Process]:
    """Start one `deepspeed --no_ssh` per node; the hostfile gives each exactly its share of the ranks."""
    refuse_variables(job, _SETS)
    ranks = place(job, roster)
    on_cpu = not gpus.per_process(job, roster, ranks)
    env = {"DS_ACCELERATOR": "cpu"} if on_cpu and "DS_ACCELERATOR" not in job.env else {}
    return [_process(job, ranks, number, node, {**env, **_granted(job, node)}) for number, node in enumerate(ranks)]


def _process(job: PreparedJob, ranks: Dict[str, int], number: int, node: str, env: Dict[str, str]) -> Process:
    flags: Dict[str, object] = {
        "hostfile": f"{job.directory}/hostfile",
        "node_rank": number,
        "master_addr": next(iter(ranks)),
        "master_port": job.port(_MASTER),
    }
    own = _own_flags(job)
    argv = ["deepspeed", "--no_ssh", *(f"--{name}={value}" for name, value in flags.items()), *own, "--no_python"]
    return Process(
        label=f"deepspeed@{node}",
        node=node,
        argv=(*argv, f"{job.directory}/rank"),
        command=job.command,
        ranks={node: ranks[node]},
        env=env,
        files={"hostfile": _hostfile(ranks), "rank": _rank(job)},
        ports=() if number else (job.port(_MASTER),),
    )


def _granted(job: PreparedJob, node: str) -> Dict[str, str]:
    devices = job.devices.get(node)
    return {_GRANTED: ",".join(devices)} if devices else {}


def _own_flags(job: PreparedJob) -> List[str]:
    text = job.options.get("deepspeed-flags", "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise RefusedError(
            f"--deepspeed-flags '{text}' can't be split into words as a shell does: {error}", code="bad-words"
        ) from None


def _hostfile(ranks: Dict[str, int]) -> str:
    return "".join(f"{node} slots={count}\n" for node, count in ranks.items())


def _rank(job: PreparedJob) -> str:
    # DeepSpeed numbers a node's GPUs from 0, even if a batch scheduler granted others. It adds --local_rank=N after the
    # first word of what it starts; the user's program gets it as its last word, which the keeper expects after "=".
    visible = f'[ -z "${_GRANTED}" ] || export CUDA_VISIBLE_DEVICES="${_GRANTED}"'
    return f'#!/bin/sh\n{visible}\nexec {shlex.join(job.keeper("RANK"))} ${{1:+"=$1"}}\n'
