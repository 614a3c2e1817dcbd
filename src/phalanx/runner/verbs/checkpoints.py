"""Where a job keeps its checkpoints, which outlive it, and how a later job goes on from them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid, Newer
from phalanx.runner.files import job_record
from phalanx.runner.files import state as states
from phalanx.runner.files.job_record import JobRecord, Mirror
from phalanx.runner.process import RefusedError

if TYPE_CHECKING:
    from typing import List, Optional

VARIABLE = "PHALANX_CHECKPOINT"
"""In the environment of each process: the absolute path of the job's directory for checkpoints."""

_S3 = "s3://"
_HOMES = ".phalanx/s3"
# Of S3, by the partition; "amazonaws.com" in the others (docs/aws-behaviour.md 6.1).
_DOMAINS = {"aws-cn": "amazonaws.com.cn", "aws-eusc": "amazonaws.eu"}
# What belongs to a submission, and not to the job that it continues.
_OWN = ("id", "submitted_at", "stack", "resume", "after", "after_any")


def continued(directory: str, job: JobRecord) -> JobRecord:
    """Return the job as it is, or with all that it takes from the job that it continues. Raises RefusedError."""
    if not job.resume:
        return job
    earlier = _record(os.path.join(os.path.dirname(directory), job.resume))
    if not earlier.checkpoint:
        raise RefusedError(
            f"job {job.resume} has no directory for checkpoints\n"
            "Only a job that was started with --checkpoint can be resumed.",
            code="no-checkpoint",
        )
    return replace(earlier, **{name: getattr(job, name) for name in _OWN}, command=job.command or earlier.command)


def require_secrets(directory: str, job: JobRecord) -> None:
    """Raise RefusedError if the job continues one with secrets, which are kept nowhere, and has none."""
    if job.resume and not job.secrets:
        try:
            earlier = states.read(os.path.join(os.path.dirname(directory), job.resume))
        except (OSError, Invalid):
            return
        if earlier.has_secrets:
            raise RefusedError(
                f"job {job.resume} had secrets, which are not stored\nGive them again with --secret.",
                code="secrets-needed",
            )


def claim(directory: str, job: JobRecord, running: List[str]) -> JobRecord:
    """Make the job's directory for checkpoints. Return the job with its path, for the processes.

    `running` are the ids of the other jobs that run now: none of them may use the same directory. Raises RefusedError,
    OSError.
    """
    if not job.checkpoint:
        return job
    jobs = os.path.dirname(directory)
    shared = os.path.dirname(os.path.dirname(jobs))
    mirror = _mirror(job.checkpoint, job.stack, shared)
    path = os.path.normpath(os.path.join(shared, f"{mirror.home}/files" if mirror else job.checkpoint))
    if not path.startswith(f"{os.path.normpath(shared)}/"):
        raise RefusedError(
            f"--checkpoint {job.checkpoint} is not below {shared}\nOnly this directory is on all nodes.",
            code="outside-shared",
        )
    for other in running:
        if path == _path_of(os.path.join(jobs, other)):
            raise RefusedError(
                f"job {other} keeps its checkpoints in {path}\nWait for its end, or stop it.", code="checkpoint-taken"
            )
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"--checkpoint: can't make {path}: {error.strerror}", code="cannot-write") from None
    return replace(job, mirror=mirror, env={**job.env, VARIABLE: path})


def _mirror(checkpoint: str, stack: str, shared: str) -> Optional[Mirror]:
    """Return where in S3 the directory is kept, and where it is here; None for one that is only here."""
    if not checkpoint.startswith(_S3):
        return None
    bucket, _, prefix = checkpoint[len(_S3) :].partition("/")
    _, partition, _, region = stack.split(":")[:4]
    endpoint = f"https://s3.{region}.{_DOMAINS.get(partition, 'amazonaws.com')}"
    return Mirror(
        bucket=bucket,
        prefix=f"{prefix.rstrip('/')}/",
        region=region,
        endpoint=os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or endpoint,
        # One name, because a prefix may contain another one; "~" is in no bucket's name and in no prefix.
        home=os.path.join(shared, _HOMES, "~".join([bucket, *prefix.strip("/").split("/")])),
    )


def _path_of(directory: str) -> str:
    try:
        return _record(directory).env.get(VARIABLE, "")
    except RefusedError:
        return ""


def _record(directory: str) -> JobRecord:
    """Read the record of an earlier job. Raises RefusedError."""
    try:
        return job_record.read(directory)
    except FileNotFoundError:
        raise RefusedError(
            f"there is no job {os.path.basename(directory)}\n`phalanx jobs` lists the jobs.", code="no-job"
        ) from None
    except Newer as error:
        raise RefusedError(str(error), code="damaged-record") from None
    except (OSError, Invalid):
        raise RefusedError(
            f"the record of job {os.path.basename(directory)} is damaged\nStart a new job with the same --checkpoint.",
            code="damaged-record",
        ) from None
