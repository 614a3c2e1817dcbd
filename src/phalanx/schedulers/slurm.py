"""Slurm: sbatch holds the nodes, srun starts one starter on each, scontrol says how it stands, scancel ends it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from phalanx.runner.batch.scheduling import ENDED, HELD, QUEUED, Request, Standing
from phalanx.runner.process import RefusedError

if TYPE_CHECKING:
    from phalanx.runner.batch.scheduling import Call

NAME = "slurm"
SUMMARY = "Slurm's sbatch and srun"
HIDDEN = ("SLURM", "SBATCH_", "SRUN_", "PMI")
SHOWN = ("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_JOB_ACCOUNT", "SLURM_CLUSTER_NAME")
NODE_INDEX = "SLURM_NODEID"
# With cgroups the first counts from 0 among the granted ones; the others would not.
GPUS = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")

# "JOB STATE CODES" of squeue(1): those before the nodes are there, those while they are, those that the job's own
# script ends in, and the other ends: the first of these are no fault of the job's.
_QUEUED = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_HELD = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT")
_BY_ITSELF = ("COMPLETED", "FAILED")
_AGAIN = ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL")
_KILLED = ("CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY")

# What srun takes from here as if it were typed: with it, a node's starter would get one rank's share alone.
_PER_TASK = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK")
_PER_TASK += ("SLURM_NTASKS_PER_GPU", "SLURM_CPU_BIND", "SLURM_GPU_BIND")


def arguments(request: Request) -> list[str]:
    """sbatch's command line; the user's own options come last, so that they count."""
    shape = [f"--ntasks={request.processes}"]
    if not request.anywhere:
        shape += [f"--nodes={request.nodes}", f"--ntasks-per-node={request.per_node}"]
    fixed = ["sbatch", "--parsable", "--no-requeue", f"--job-name={request.name}", f"--output={request.log}"]
    return [*fixed, *shape, *request.options]


def script(request: Request) -> str:
    """What runs on the first node: a starter on each, with all that is granted there, till the last one has ended."""
    # As many tasks as there are ranks, of which a node's first becomes the starter: asked for fewer, Slurm would give
    # the step fewer GPUs than the job has. Unbound: else the whole job on that node would have one task's cores.
    srun = "exec srun --mpi=none --cpu-bind=none --kill-on-bad-exit=0 --wait=0 --input=none sh -c"
    attend = request.attend('"$SLURM_JOB_ID"', '"$SLURM_JOB_NUM_NODES"', '"$SLURM_TASKS_PER_NODE"')
    task = shlex.quote(f'[ "$SLURM_LOCALID" != 0 ] || exec {attend}')
    return f"#!/bin/sh\nunset {' '.join(_PER_TASK)}\n{srun} {task}\n"


def submit(request: Request, call: Call) -> str:
    """Hand it in; returns Slurm's number for it."""
    # "42", or "42;cluster" where Slurm has several.
    return call(arguments(request), script(request)).strip().partition(";")[0]


def look(allocation: str, call: Call) -> Standing:
    """As scontrol sees it. Slurm forgets what has ended after MinJobAge (five minutes where nobody set it)."""
    try:
        return standing(call(["scontrol", "show", "job", "--oneliner", allocation], ""))
    except RefusedError as error:
        if "Invalid job id" in str(error):
            return Standing(ENDED, "Slurm no longer knows it")
        raise


def standing(text: str) -> Standing:
    """From scontrol's line of NAME=value pairs. Raises RefusedError for one that tells no state: that ends no job."""
    fields = {name: value for name, _, value in (word.partition("=") for word in text.split())}
    state, reason = fields.get("JobState", ""), fields.get("Reason", "None").replace("_", " ")
    words = state if reason == "None" else f"{state}, {reason}"
    if state in _QUEUED:
        return Standing(QUEUED, "" if reason == "None" else reason)
    if state in _HELD:
        return Standing(HELD, words)
    if state not in (*_BY_ITSELF, *_AGAIN, *_KILLED):
        raise RefusedError(f"slurm reports no state of the job: '{text[:80].strip()}'")
    return Standing(ENDED, words, killed=state not in _BY_ITSELF, again=state in _AGAIN)


def cancel(allocation: str, call: Call) -> None:
    """End it, queued or held."""
    call(["scancel", allocation], "")
