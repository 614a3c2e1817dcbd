"""A job as it is requested on this machine, and its status as the head sends it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypedDict

from phalanx.errors import JobError
from phalanx.node.validate import Invalid, parse
from phalanx.runner.files.array import tasks_in
from phalanx.runner.files.job_record import ON_STALL, JobRecord, idle_gpu
from phalanx.runner.files.job_status import JobStatus
from phalanx.runner.files.schema import LONGEST_GRACE_S
from phalanx.spec.spec_data import PREFIX_URL

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAG = re.compile(r"[\w./@:+-][\w ./@:+=-]{0,127}")
# A path without ".." and without a scheme such as s3://.
_PATH = re.compile(r"(?!.*(^|/)\.\.(/|$))/?[^/:\0\n]+(/[^/\0\n]+)*/?")
SHORTEST_STALL_S = 6
_LONGEST_STEP = 200
_STEP_HINT = r"Give one with a group for the number, such as --step 'step (\d+)'."
# The options that go with --resume; all others come from the earlier job.
_WITH_RESUME = ("resume", "directory", "after", "after_any")


@dataclass(frozen=True)
class JobSpec(JobRecord):
    """A job as it is requested on this machine: its record, and what is sent besides.

    Of `directory` the contents are sent. `stdin` is what rank 0 reads, from the beginning after each restart (None:
    nothing).
    """

    directory: Path = field(
        default=Path(), metadata={"flag": "--directory", "help": "The directory with the code. Without it: this one."}
    )
    stdin: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.command and not self.resume:
            raise JobError(
                "there is no command to run", "Name one: `phalanx run -- python train.py`.", code="no-command"
            )
        for flag, value in (("-n", self.processes), ("-N", self.per_node)):
            if value is not None and value < 1:
                raise JobError(f"{flag} is {value}", "It counts processes: 1 or more.", code="out-of-range")
        if self.restarts < 0:
            raise JobError(f"--restarts is {self.restarts}", "It counts restarts: 0 or more.", code="out-of-range")
        if not 0 <= self.grace_s <= LONGEST_GRACE_S:
            raise JobError(f"--grace is {self.grace_s} s", f"Give 0 to {LONGEST_GRACE_S} s.", code="out-of-range")
        if self.restart_on and not self.restarts:
            why = "--restart-on needs --restarts"
            raise JobError(why, "Say how often: --restarts 3.", code="conflicting-options")
        if self.priority and not (self.wait or self.array):
            why = "--priority needs --wait or --array: other jobs start at once"
            raise JobError(why, "Add --wait.", code="conflicting-options")
        self._check_nodes()
        self._check_via()
        self._check_array()
        self._check_stall()
        self._check_resume()
        if self.checkpoint is not None and not (_PATH.fullmatch(self.checkpoint) or _is_prefix(self.checkpoint)):
            raise JobError(
                f"--checkpoint '{self.checkpoint}' is neither a directory of the cluster nor a prefix in S3",
                "Give a path on the shared directory, such as checkpoints/mnist, or s3://bucket/prefix.",
                code="bad-checkpoint",
            )
        self._check_names()

    def _check_names(self) -> None:
        for path in self.links:
            if path.startswith("/") or not set(path.split("/")).isdisjoint({"", ".", ".."}):
                raise JobError(
                    f"--link {path}=… is no path in the code", "Give a relative one without '..'.", code="bad-link"
                )
        for name in (*self.env, *self.secrets, *(name for env in self.role_env.values() for name in env)):
            if not _VARIABLE.fullmatch(name):
                raise JobError(
                    f"'{name}' can't be a variable's name",
                    "Use letters, digits and '_', and no digit first.",
                    code="bad-variable",
                )
            if name.startswith("PHALANX_"):
                raise JobError(
                    f"{name} can't be set", "Names that begin with PHALANX_ are phalanx's own.", code="bad-variable"
                )
        check_names(self.name, self.tags)

    def _check_stall(self) -> None:
        if self.step is not None:
            _check_step(self.step)
        if self.on_stall not in ON_STALL:
            raise JobError(f"--on-stall is '{self.on_stall}'", f"Choose {', '.join(ON_STALL)}.", code="out-of-range")
        if 0 < self.stall_s < SHORTEST_STALL_S:
            why = f"Give {SHORTEST_STALL_S} s or more, such as 10m."
            raise JobError(f"--stall is {self.stall_s} s", why, code="out-of-range")
        self._check_idle_gpu()
        if self.on_stall != "report" and not (self.stall_s or self.idle_gpu):
            why = f"--on-stall {self.on_stall} needs --stall or --idle-gpu"
            raise JobError(why, "Say how long: --stall 10m.", code="conflicting-options")
        if self.on_stall == "restart" and not self.restarts:
            why = "--on-stall restart needs --restarts"
            raise JobError(why, "Say how often: --restarts 3.", code="conflicting-options")

    def _check_idle_gpu(self) -> None:
        try:
            within_s = idle_gpu(self.idle_gpu)[1] if self.idle_gpu is not None else SHORTEST_STALL_S
        except Invalid as error:
            raise JobError(f"--idle-gpu: {error}", "Write one such as 10%:1h.", code="out-of-range") from None
        if within_s < SHORTEST_STALL_S:
            why = f"Give {SHORTEST_STALL_S} s or more, such as 10%:1h."
            raise JobError(f"--idle-gpu has {within_s} s", why, code="out-of-range")

    def _check_array(self) -> None:
        if self.array is None:
            return
        try:
            tasks_in(self.array)
        except Invalid as error:
            hint = "Write the numbers as Slurm does: 0-31, 0-31:2 or 1,3,7; %4 after them runs at most 4 at once."
            raise JobError(f"--array: {error}", hint, code="bad-array") from None
        if self.via:
            why = f"--array starts the tasks itself, and --via {self.via} would have each wait in its queue"
            raise JobError(why, "Leave one of them out.", code="conflicting-options")

    def _check_via(self) -> None:
        if self.via_options and not self.via:
            raise JobError(
                "--via-option needs --via",
                "Add --via slurm, sge or yarn: it hands the job to a scheduler.",
                code="conflicting-options",
            )
        if self.via and (self.nodes_min is not None or self.hosts):
            what = "the nodes (--nodes, a hosts file)" if self.hosts else "how many nodes there are (--nodes)"
            raise JobError(
                f"with --via {self.via}, {self.via} decides {what}",
                "Request processes with -n and -N.",
                code="conflicting-options",
            )

    def _check_resume(self) -> None:
        options = [one for one in fields(self) if one.metadata.get("flag") and one.name not in _WITH_RESUME]
        for option in options if self.resume else ():
            if getattr(self, option.name) not in (option.default, {}):
                raise JobError(
                    f"{option.metadata['flag']} can't be changed with --resume, which takes it from job {self.resume}",
                    "To change it, start a new job with the same --checkpoint.",
                    code="conflicting-options",
                )

    def _check_nodes(self) -> None:
        fewest, most = self.nodes_min, self.nodes_max
        if (fewest is None) != (most is None) or (fewest and most and not 1 <= fewest <= most) or fewest == 0:
            raise JobError(
                f"--nodes is {fewest}:{most}",
                "Give the smallest and the largest number of nodes, such as 2:4.",
                code="node-range",
            )
        if fewest is not None and self.processes is not None:
            raise JobError(
                "-n sets a fixed number of processes, which --nodes lets change",
                "Set the processes of each node with -N.",
                code="conflicting-options",
            )


def check_names(name: str | None, tags: Mapping[str, str]) -> None:
    """Raise JobError unless these can be a job's name (None: it has none) and tags."""
    for tag, value in tags.items():
        if not (_NAME.fullmatch(tag) and _TAG.fullmatch(value)):
            raise JobError(
                f"'{tag}={value}' can't be a tag",
                "Use letters, digits and . _ - / @ : + in both; no '=' first.",
                code="bad-tag",
            )
    if name is not None and not _NAME.fullmatch(name):
        raise JobError(
            f"'{name}' can't be a job's name",
            "Use letters, digits, '_', '-' and '.': at most 63 of them.",
            code="bad-name",
        )


def _check_step(step: str) -> None:
    try:
        groups = re.compile(step.encode()).groups
    except (re.error, OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise JobError(f"--step is no regular expression: {error}", _STEP_HINT, code="bad-step") from None
    if not groups or len(step) > _LONGEST_STEP:
        why = f"is longer than {_LONGEST_STEP} characters" if groups else "has no group"
        raise JobError(f"--step {why}", _STEP_HINT, code="bad-step")


def _is_prefix(url: str) -> bool:
    return bool(re.fullmatch(PREFIX_URL, url))


class JobOptions(TypedDict, total=False):
    """The fields of JobSpec that `phalanx.Cluster.run` takes as they are, for editors and type checkers."""

    launcher: str
    processes: int | None
    per_node: int | None
    name: str | None
    directory: Path | str
    stdin: bytes | None
    env: Mapping[str, str]
    tags: Mapping[str, str]
    links: Mapping[str, str]
    secrets: Mapping[str, str]
    checkpoint: str | None
    resume: str | None
    restarts: int
    restart_on: Sequence[int]
    time_s: int
    grace_s: int
    step: str | None
    stall_s: int
    on_stall: str
    idle_gpu: str | None
    wait: bool
    wait_limit_s: int
    priority: int
    after: Sequence[str]
    after_any: Sequence[str]
    array: str | None
    options: Mapping[str, str]
    via: str | None
    via_options: Sequence[str]


def status_of(record: Any) -> JobStatus:
    """Return the status that the head sent. Raises JobError when that is not a job's status."""
    try:
        return JobStatus.from_record(record)
    except Invalid as error:
        raise JobError(f"the head sent an invalid job state: {error}", code="invalid-answer") from error


def status_in(line: bytes) -> JobStatus:
    """Return the status in a line of JSON. Raises JobError."""
    try:
        return status_of(parse(line))
    except Invalid as error:
        raise JobError(f"the head sent an invalid job state, which {error}", code="invalid-answer") from error
