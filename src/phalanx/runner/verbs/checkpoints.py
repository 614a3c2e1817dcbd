"""Where a job keeps its checkpoints, which outlive it, and how a later job goes on from them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid, Newer, require_format
from phalanx.runner.files import state as states
from phalanx.runner.files.schema import FORMAT
from phalanx.runner.names import RECORD
from phalanx.runner.process import RefusedError

if TYPE_CHECKING:
    from typing import Any, Dict, List

VARIABLE = "PHALANX_CHECKPOINT"
"""In the environment of each process: the absolute path of the job's directory for checkpoints."""

_S3 = "s3://"
_HOMES = ".phalanx/s3"
# Of S3, by the partition; "amazonaws.com" in the others (docs/aws-behaviour.md 6.1).
_DOMAINS = {"aws-cn": "amazonaws.com.cn", "aws-eusc": "amazonaws.eu"}
# What belongs to a submission, and not to the job that it continues.
_OWN = ("id", "submitted_at", "stack", "resume")


def continued(directory: str, job: Dict[str, Any]) -> Dict[str, Any]:
    """Return the job as it is, or with all that it takes from the job that it continues. Raises RefusedError."""
    if not job["resume"]:
        return job
    earlier = _record(os.path.join(os.path.dirname(directory), job["resume"]))
    if not earlier.get("checkpoint"):
        raise RefusedError(
            f"job {job['resume']} has no directory for checkpoints\n"
            "Only a job that was started with --checkpoint can be resumed."
        )
    # Any job may have changed the record: what it lacks is this job's own.
    return {**job, **earlier, **{name: job[name] for name in _OWN}, "command": job["command"] or earlier["command"]}


def require_secrets(directory: str, job: Dict[str, Any]) -> None:
    """Raise RefusedError if the job continues one with secrets, which are kept nowhere, and has none."""
    if job["resume"] and not job["secrets"]:
        try:
            earlier = states.read(os.path.join(os.path.dirname(directory), job["resume"]))
        except (OSError, Invalid):
            return
        if earlier["has_secrets"]:
            raise RefusedError(
                f"job {job['resume']} had secrets, which are kept nowhere\nGive them again with --secret."
            )


def claim(directory: str, job: Dict[str, Any], running: List[str]) -> None:
    """Make the job's directory for checkpoints, and give its path to the processes. Raises RefusedError, OSError.

    `running` are the ids of the other jobs that run now: none of them may use the same directory.
    """
    if not job["checkpoint"]:
        return
    jobs = os.path.dirname(directory)
    shared = os.path.dirname(os.path.dirname(jobs))
    job["mirror"] = _mirror(job, shared)
    path = os.path.normpath(
        os.path.join(shared, f"{job['mirror']['home']}/files" if job["mirror"] else job["checkpoint"])
    )
    if not path.startswith(f"{os.path.normpath(shared)}/"):
        raise RefusedError(f"--checkpoint {job['checkpoint']} is not below {shared}\nOnly that is on all nodes.")
    for other in running:
        if path == _path_of(os.path.join(jobs, other)):
            raise RefusedError(f"job {other} keeps its checkpoints in {path}\nWait for its end, or stop it.")
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"--checkpoint: can't make {path}: {error.strerror}") from None
    job["env"] = {**job["env"], VARIABLE: path}


def _mirror(job: Dict[str, Any], shared: str) -> Dict[str, str]:
    """Return where in S3 the directory is kept, and where it is here; {} for one that is only here."""
    if not job["checkpoint"].startswith(_S3):
        return {}
    bucket, _, prefix = job["checkpoint"][len(_S3) :].partition("/")
    _, partition, _, region = job["stack"].split(":")[:4]
    endpoint = f"https://s3.{region}.{_DOMAINS.get(partition, 'amazonaws.com')}"
    return {
        "bucket": bucket,
        "prefix": f"{prefix.rstrip('/')}/",
        "region": region,
        "endpoint": os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or endpoint,
        # One name, because a prefix may contain another one; "~" is in no bucket's name and in no prefix.
        "home": os.path.join(shared, _HOMES, "~".join([bucket, *prefix.strip("/").split("/")])),
    }


def _path_of(directory: str) -> str:
    try:
        return _record(directory)["env"].get(VARIABLE, "")
    except RefusedError:
        return ""


def _record(directory: str) -> Dict[str, Any]:
    """Read a job's description, which any job can have changed: its types are checked. Raises RefusedError."""
    try:
        with open(os.path.join(directory, RECORD)) as file:
            record = json.load(file)
        require_format(record, FORMAT, f"job {os.path.basename(directory)}")
        command, env = record["command"], record["env"]
        is_sound = bool(command) and isinstance(command, list) and isinstance(env, dict) and bool(record["launcher"])
        if not is_sound or not all(isinstance(word, str) for word in (*command, *env, *env.values())):
            raise ValueError
    except FileNotFoundError:
        raise RefusedError(f"there is no job {os.path.basename(directory)}\n`phalanx jobs` lists the jobs.") from None
    except Newer as error:
        raise RefusedError(str(error)) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise RefusedError(
            f"the record of job {os.path.basename(directory)} is damaged\nStart a new job with the same --checkpoint."
        ) from None
    return record
