"""Slurm: sbatch reserves nodes, srun runs a starter on each, scontrol shows the state, and scancel ends the job."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from phalanx.runner.batch.scheduling import ENDED, HELD, QUEUED, AllocationStatus, Request
from phalanx.runner.process import RefusedError

if TYPE_CHECKING:
    from phalanx.runner.batch.scheduling import Call

NAME = "slurm"
SUMMARY = "Slurm's sbatch and srun"
HIDDEN = ("SLURM", "SBATCH_", "SRUN_", "PMI")
SHOWN = ("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_JOB_ACCOUNT", "SLURM_CLUSTER_NAME")
NODE_INDEX = "SLURM_NODEID"
# With cgroups, the first counts from 0 among the granted GPUs; the others do not.
GPUS = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")

# "JOB STATE CODES" of squeue(1): before the nodes are granted, while they are held, after the script ended by itself,
# after an end that is not the job's fault, and after the job was killed.
_QUEUED = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_HELD = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT")
_BY_ITSELF = ("COMPLETED", "FAILED")
_AGAIN = ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL")
_KILLED = ("CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY")

# Variables that srun reads like options: with them, a node's starter would get only one rank's share.
_PER_TASK = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK")
_PER_TASK += ("SLURM_NTASKS_PER_GPU", "SLURM_CPU_BIND", "SLURM_GPU_BIND")


def arguments(request: Request) -> list[str]:
    """Build sbatch's command line; the user's options come last, so that they take precedence."""
    shape = [f"--ntasks={request.processes}"]
    if not request.anywhere:
        shape += [f"--nodes={request.nodes}", f"--ntasks-per-node={request.per_node}"]
    # In minutes, which are Slurm's own unit ("--time" of sbatch(1)).
    shape += [f"--time={math.ceil(request.limit_s / 60)}"] if request.limit_s else []
    fixed = ["sbatch", "--parsable", "--no-requeue", f"--job-name={request.name}", f"--output={request.log}"]
    return [*fixed, *shape, *request.options]


def script(request: Request) -> str:
    """Write the batch script: it runs a starter on each node, with all that is granted there, until the last ends."""
    # As many tasks as ranks, of which the first on each node becomes the starter: for fewer, Slurm would give the step
    # fewer GPUs than the job has. Unbound: otherwise the whole job on a node would have one task's cores.
    srun = "exec srun --mpi=none --cpu-bind=none --kill-on-bad-exit=0 --wait=0 --input=none sh -c"
    attend = request.attend('"$SLURM_JOB_ID"', '"$SLURM_JOB_NUM_NODES"', '"$SLURM_TASKS_PER_NODE"')
    task = shlex.quote(f'[ "$SLURM_LOCALID" != 0 ] || exec {attend}')
    return f"#!/bin/sh\nunset {' '.join(_PER_TASK)}\n{srun} {task}\n"


def submit(request: Request, call: Call) -> str:
    """Submit the request; return Slurm's number for it."""
    # "42", or "42;cluster" with several clusters.
    return call(arguments(request), script(request)).strip().rpartition("\n")[2].partition(";")[0]


def status(allocation: str, call: Call) -> AllocationStatus:
    """Return the state that scontrol shows. Slurm forgets ended jobs after MinJobAge (five minutes by default)."""
    try:
        return read_status(call(["scontrol", "show", "job", "--oneliner", allocation], ""))
    except RefusedError as error:
        if "Invalid job id" in str(error):
            return AllocationStatus(ENDED, "Slurm no longer knows it")
        raise


def read_status(line: str) -> AllocationStatus:
    """Parse scontrol's NAME=value pairs. Raises RefusedError when they contain no state, which must not end the job."""
    fields = {name: value for name, _, value in (word.partition("=") for word in line.split())}
    state, reason = fields.get("JobState", ""), fields.get("Reason", "None").replace("_", " ")
    text = state if reason == "None" else f"{state}, {reason}"
    if state in _QUEUED:
        return AllocationStatus(QUEUED, "" if reason == "None" else reason)
    if state in _HELD:
        return AllocationStatus(HELD, text)
    if state not in (*_BY_ITSELF, *_AGAIN, *_KILLED):
        raise RefusedError(f"slurm reports no state of the job: '{line[:80].strip()}'", code="scheduler")
    return AllocationStatus(ENDED, text, killed=state not in _BY_ITSELF, retryable=state in _AGAIN)


def cancel(allocation: str, call: Call) -> None:
    """Cancel the job, queued or running."""
    call(["scancel", allocation], "")
