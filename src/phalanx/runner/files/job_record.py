"""A job as data, the same on the user's machine and on the head: what was requested, as job.json has it.

Any job can write into every job's directory, so what is read there is checked, field by field.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, NamedTuple

from phalanx.node import validate
from phalanx.node.validate import Invalid, Newer, count, truth
from phalanx.runner.files import array, record
from phalanx.runner.files.schema import (
    FORMAT,
    UNIT_SECONDS,
    by_name,
    exit_code,
    file_name,
    grace,
    job_id,
    number,
    one_of,
    optional,
    positive,
    priority,
    text,
    texts,
    tuple_of,
)
from phalanx.runner.names import RECORD

if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional, Tuple

    from phalanx.runner.files.schema import Check

COMMIT = "PHALANX_COMMIT"
"""In the environment of each process: the commit of the job's code, with "-dirty" if it has changes."""


ON_STALL = ("report", "stop", "restart")
"""What `--on-stall` may say."""


def idle_gpu(value: str) -> Tuple[int, int]:
    """Return percent and seconds of what `--idle-gpu` has, such as 10%:1h. Raises Invalid."""
    found = re.fullmatch("([1-9][0-9]?)%:([1-9][0-9]{0,5})([smhd]?)", value, re.ASCII)
    if not found:
        raise Invalid(f"{value!r:.60} is not a share of time below 100 % and a time, such as 10%:1h")
    return int(found[1]), int(found[2]) * UNIT_SECONDS[found[3] or "s"]


def _idle_gpu(value: Any) -> str:
    idle_gpu(text(value))
    return value


@dataclass(frozen=True)
class Environment:
    """How to make an environment: write `files`, run `pip install` with each of `steps`, then run `check`.

    `python` is a specifier such as ">=3.10,<3.13" ("": any). Packages of the image stay visible unless `isolated`.
    `variables` are set while the environment is made, `job_variables` in the job's processes.
    """

    name: str
    files: Mapping[str, str]
    steps: Tuple[Tuple[str, ...], ...]
    python: str = ""
    isolated: bool = False
    check: Tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    job_variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_record(cls, value: Any) -> Environment:
        """Build one from a job's record. Raises Invalid."""
        return cls(**validate.fields(_ENVIRONMENT, value))

    @property
    def digest(self) -> str:
        """A hash of everything that decides what is installed; the same on every machine."""
        # Here, because it takes 10 ms, and most jobs have no environment.
        from hashlib import sha256

        parts = (self.name, self.files, self.steps, self.python, self.isolated, self.check, self.variables)
        return sha256(json.dumps(parts, sort_keys=True, default=dict).encode()).hexdigest()[:24]


class Mirror(NamedTuple):
    """Where in S3 a job's checkpoints are kept, and `home`, the directory with them on the shared directory."""

    bucket: str
    prefix: str
    region: str
    endpoint: str
    home: str

    @classmethod
    def from_record(cls, value: Any) -> Mirror:
        """Build one from a job's record. Raises Invalid."""
        return cls(**validate.fields(dict.fromkeys(cls._fields, text), value))


def option(check: Check, flag: str = "", help: str = "", **default: Any) -> Any:
    """Declare a field with the check that it must pass where a record is read.

    One with a flag is an option of `phalanx run`, too; the field's type decides which values the flag takes.
    """
    return field(**default, metadata={"check": check, "flag": flag, "help": help})


@dataclass(frozen=True)
class JobRecord:
    """What to run. A field with a flag is an option of `phalanx run`, too.

    `env` reaches the processes through files and connections that only the job user can read, never through argv.
    `links` are symbolic links in the copy of the code: their paths there, and what they lead to on the nodes, absolute
    or relative to the shared directory.
    `checkpoint` is a directory below the shared directory, which the processes find in PHALANX_CHECKPOINT; one job at a
    time uses it. With an s3:// prefix it is also kept there, and the head adds `mirror`. `resume` is an earlier job
    with such a directory: all but the code, the secrets and, if it is given, the command comes from that job.
    `grace_s` is the time between SIGTERM and SIGKILL for its processes, whatever ends them. `time_s` is how long the
    job may run from its first start (0: without end). It is restarted only after exit codes in `restart_on` (none:
    any), and begins when the jobs `after` have succeeded and the jobs `after_any` have ended. With `array` it is not
    run itself: each of the numbers becomes a job of its own.
    `secrets` are variables that are written nowhere: they go over ssh into the memory of the runner on the head, and
    from there into the environments of the job's processes. A launcher puts them into neither argv nor env nor files.
    With `nodes_min` and `nodes_max` (both or none; torchrun) the job continues with the nodes that are left, and grows
    again; an engine that does so may restart its ranks `restarts` times. `options` are the launcher's own, by name;
    `role_env` are variables for the processes of one role ("server", "worker"). `hosts` names the only nodes that may
    be used, in this order (none: all). `sync_dir` is a local directory on each node: the code is copied there, and runs
    there. `environment` describes Python packages, installed into a virtual environment on the shared directory before
    anything starts. `via` is the cluster's batch system that allocates the nodes, `via_options` are its own arguments.
    `stack` is the id of the cluster's stack.
    """

    command: Tuple[str, ...] = option(texts)
    launcher: str = option(text, default="mpi")
    processes: Optional[int] = option(optional(None, positive), "-n", "Processes in all.", default=None)
    per_node: Optional[int] = option(optional(None, positive), "-N", "Processes on each node.", default=None)
    name: Optional[str] = option(optional(None, text), "--name", "A name for the job, to find it by.", default=None)
    env: Mapping[str, str] = option(by_name(text), "--env", "A variable for the job. Repeatable.", default_factory=dict)
    tags: Mapping[str, str] = option(
        by_name(text), "--tag", "A label of the job. Repeatable; `jobs --tag` finds it.", default_factory=dict
    )
    links: Mapping[str, str] = option(
        by_name(text),
        "--link",
        "A link in the job's copy of the code, such as data=datasets/mnist. Repeatable.",
        default_factory=dict,
    )
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    checkpoint: Optional[str] = option(
        optional(None, text),
        "--checkpoint",
        "A directory for checkpoints, PHALANX_CHECKPOINT, that outlives the job: on the shared directory, or in S3.",
        default=None,
    )
    resume: Optional[str] = option(
        optional(None, job_id), "--resume", "Continue from this job's checkpoints, with its command.", default=None
    )
    restarts: int = option(count, "--restarts", "How often to start the job again when it fails.", default=0)
    restart_on: Tuple[int, ...] = option(
        tuple_of(exit_code),
        "--restart-on",
        "With --restarts: start it again only after these exit codes, such as 75,137, or a lost node.",
        default=(),
    )
    time_s: int = option(
        count,
        "--time",
        "How long the job may run from its first start, such as 4h. Its ranks then get SIGUSR1, and after --grace "
        "SIGTERM.",
        default=0,
    )
    grace_s: int = option(
        grace,
        "--grace",
        "How long processes have to save and end after SIGTERM, such as 30s.",
        default=5,
    )
    step: Optional[str] = option(
        optional(None, text),
        "--step",
        r"A regular expression whose group is the step in a line of output, such as 'step (\d+)'.",
        default=None,
    )
    stall_s: int = option(
        count,
        "--stall",
        "The job is stalled if, for this long, no step advances, or it writes nothing and all stacks stay the same.",
        default=0,
    )
    on_stall: str = option(
        one_of(ON_STALL), "--on-stall", "What to do with a stalled job: report, stop or restart.", default=ON_STALL[0]
    )
    idle_gpu: Optional[str] = option(
        optional(None, _idle_gpu),
        "--idle-gpu",
        "The job is stalled, too, if its GPUs were less busy than this on average in that time, such as 10%:1h.",
        default=None,
    )
    wait: bool = option(truth, "--wait", "Wait for free slots instead of sharing them with other jobs.", default=False)
    wait_limit_s: int = option(
        count, "--wait-limit", "With --wait: give up after this time, such as 2h.", default=86400
    )
    priority: int = option(
        priority,
        "--priority",
        "With --wait or --array: of the jobs that wait for slots, those with a higher number start first, then those "
        "that came first.",
        default=0,
    )
    after: Tuple[str, ...] = option(
        tuple_of(job_id), "--after", "Start the job when this one has succeeded. Repeatable.", default=()
    )
    after_any: Tuple[str, ...] = option(
        tuple_of(job_id),
        "--after-any",
        "Start the job when this one has ended, successfully or not. Repeatable.",
        default=(),
    )
    array: Optional[str] = option(
        optional(None, array.array),
        "--array",
        "Start the job once for each of these numbers, which it finds in PHALANX_ARRAY_INDEX, such as 0-31%4: at most "
        "4 at once.",
        default=None,
    )
    nodes_min: Optional[int] = option(optional(None, positive), default=None)
    nodes_max: Optional[int] = option(optional(None, positive), default=None)
    options: Mapping[str, str] = option(by_name(text), default_factory=dict)
    role_env: Mapping[str, Mapping[str, str]] = option(by_name(by_name(text)), default_factory=dict)
    hosts: Tuple[str, ...] = option(texts, default=())
    sync_dir: str = option(text, default="")
    environment: Optional[Environment] = option(optional(None, Environment.from_record), default=None)  # noqa: RUF009
    via: Optional[str] = option(optional(None, text), default=None)
    via_options: Tuple[str, ...] = option(texts, default=())
    id: str = option(optional("", job_id), default="")
    stack: str = option(text, default="")
    submitted_at: float = option(number, default=0.0)
    mirror: Optional[Mirror] = option(optional(None, Mirror.from_record), default=None)  # noqa: RUF009

    @classmethod
    def from_record(cls, value: Any, what: str = "the job") -> JobRecord:
        """Build one from what `to_record` returned. Raises Invalid, and Newer for a newer phalanx's `what`."""
        validate.require_format(value, FORMAT, what)
        return cls(**validate.fields(_CHECKS, value))

    def to_record(self) -> Dict[str, Any]:
        """Return plain data, for JSON, without the secrets."""
        found = {name: getattr(self, name) for name in _CHECKS}
        environment = asdict(self.environment) if self.environment else None
        return {
            "format": FORMAT,
            **found,
            "environment": environment,
            "mirror": self.mirror._asdict() if self.mirror else None,
        }


_CHECKS: Dict[str, Check] = {one.name: one.metadata["check"] for one in fields(JobRecord) if one.metadata}
_ENVIRONMENT: Dict[str, Check] = {
    "name": file_name,
    "files": by_name(text),
    "steps": tuple_of(texts),
    "python": text,
    "isolated": truth,
    "check": texts,
    "variables": by_name(text),
    "job_variables": by_name(text),
}


def with_commit(job: JobRecord, commit: str) -> JobRecord:
    """Return the job with the commit of its code for its processes; "": none is known."""
    others = {name: value for name, value in job.env.items() if name != COMMIT}
    return replace(job, env={**others, COMMIT: commit} if commit else others)


def read(directory: str) -> JobRecord:
    """Return the job of this directory, without its secrets.

    Raises FileNotFoundError, NotADirectoryError, Invalid, Newer.
    """
    value, own_id = record.read_json(os.path.join(directory, RECORD)), os.path.basename(os.path.abspath(directory))
    try:
        job = JobRecord.from_record(value, f"job {own_id}")
    except Newer:
        raise
    except Invalid as error:
        raise Invalid(f"{RECORD}: {error}") from error
    if job.id != own_id:
        raise Invalid(f"{RECORD}: it belongs to another job")
    if not job.command or not job.launcher:
        raise Invalid(f"{RECORD}: it has no command, or no launcher")
    return job
