"""A launcher's input and result: data that describes processes and starts none."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Collection, Mapping, Protocol, Sequence, Tuple

from phalanx.node.roster import Roster
from phalanx.runner.files.job_record import JobRecord
from phalanx.runner.names import WORK

# Ports that phalanx chooses: above those of a node's services, below those that Linux assigns itself (32768 on).
FIRST_PORT = 20000
PORTS = 12000


class RefusedError(ValueError):
    """The launcher can't start this job: the first line says what was requested and what is available.

    `code` is that of the JobError that it becomes on the user's machine.
    """

    def __init__(self, message: str, *, code: str = "job") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class PreparedJob(JobRecord):
    """What the user requested, and what the head's runner found out before it calls the launcher.

    `directory` is the job's own, at the same path on every node. `engine` is the output of the launcher's ENGINE
    command on the head ("" when it is missing), `master_port` a TCP port that was free there, and `first_port` begins
    the job's own ports: see `port`. `devices` (node → numbers or names) are the GPUs that the job may see: those that a
    batch scheduler granted where it names them, or those that no other job uses; elsewhere it may use all. `token` is
    this job's secret, for engines that authenticate processes that join, and for nodes' agents, which give the job's
    credentials in return. A launcher may put it only into files.
    """

    directory: str = ""
    master_port: int = 0
    token: str = field(default="", repr=False)
    first_port: int = FIRST_PORT
    engine: str = ""
    devices: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, job: JobRecord, directory: str, **found: Any) -> PreparedJob:
        """Return a job in `directory`, with what was `found` on the head."""
        requested = {one.name: getattr(job, one.name) for one in fields(JobRecord)}
        return cls(**requested, directory=directory, **found)

    @property
    def work(self) -> str:
        """The directory with the copy of the user's code; every process starts in it."""
        return f"{self.directory}/{WORK}"

    def port(self, number: int) -> int:
        """Return the number-th of the job's ports; if one that a process lists in `ports` is taken, others serve."""
        return FIRST_PORT + (self.first_port - FIRST_PORT + number) % PORTS

    def keeper(self, rank_variable: str) -> Tuple[str, ...]:
        """Return what an engine starts instead of the user's command; it passes output and exit status to the starter.

        Engines' own forwarding is not used: Open MPI 4.1.4's `--tag-output` loses lines (129,037 of 200,000 short ones
        arrived), torchrun's `--tee` polls files. `rank_variable` is the variable in which the engine puts the rank.
        Each word follows "=", because mpiexec interprets a word ":".
        """
        arguments = (f"={word}" for word in self.command)
        return ("python3", "-IS", f"{self.directory}/keeper.py", rank_variable, *arguments)


@dataclass(frozen=True)
class Process:
    """One process that the runner starts: the user's own, or an engine that starts the user's.

    `ranks` counts the user's processes on each node that this one is or will start; `command` is what those run, and is
    looked up on each of these nodes before anything starts. `files` (name → text) are written to the job's directory
    first; those that begin with "#!" are made executable. An engine that is `early` may start before every node was
    checked, because it starts no rank until it has reached all of them.

    `places` counts what a batch scheduler must allocate on each node; where any process sets it, ranks do not count.

    `role` is the process's part among the others ("worker", "server"); it is shown before the label. A `service` works
    for the others: once these have all succeeded it is ended, and the job is done; if it fails before that, the job
    fails. Nothing starts while one of `ports` (TCP) is taken on the process's node. `harmless` is a regular expression
    for output that would only alarm people, and is removed.

    `holds_ends` is for an engine that kills all ranks as soon as one has failed: it learns of a failure once the other
    ranks were asked to end, and have ended or had the job's grace.
    """

    label: str
    node: str
    argv: Tuple[str, ...]
    command: Tuple[str, ...]
    ranks: Mapping[str, int]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    is_rank: bool = False
    early: bool = False
    role: str = ""
    service: bool = False
    ports: Tuple[int, ...] = ()
    harmless: str = ""
    places: Mapping[str, int] = field(default_factory=dict)
    holds_ends: bool = False

    @property
    def name(self) -> str:
        """The name shown to people: "worker 3", "scheduler", or only the label."""
        return f"{self.role} {self.label}".strip()


class Launcher(Protocol):
    """A module of `phalanx.launchers`. It is pure: no process, no file, no clock."""

    NAME: str
    SUMMARY: str
    ENGINE: Tuple[str, ...]  # command whose output on the head goes to PreparedJob.engine; () for none
    OPTIONS: Tuple[str, ...]  # names of `phalanx.launchers.options` that it takes
    PROGRAM: str  # what it starts on nodes in addition to the user's command; "" for none
    RECIPES: Tuple[str, ...]  # those that install its engine

    def processes(self, job: PreparedJob, roster: Roster) -> Sequence[Process]:
        """Return every process to start. Raises RefusedError when the job does not fit the roster."""
        ...


def _chosen(job: PreparedJob, roster: Roster) -> Roster:
    """Return the roster with only the job's nodes."""
    if not job.hosts:
        return roster
    gone = [name for name in job.hosts if roster.find(name) is None]
    if gone:
        raise RefusedError(
            f"{', '.join(gone)}: no longer in the cluster\n`phalanx nodes` lists its nodes.", code="no-node"
        )
    return roster._replace(nodes=tuple(node for node in map(roster.find, job.hosts) if node))


def planned(launcher: Launcher, job: PreparedJob, roster: Roster) -> Sequence[Process]:
    """Return what the launcher starts for this job. Raises RefusedError, also for an option that it doesn't take."""
    for name in job.options:
        if name not in launcher.OPTIONS:
            has = ", ".join(f"--{one}" for one in launcher.OPTIONS) or "no options of its own"
            raise RefusedError(
                f"--{name} is not an option of the launcher {job.launcher}\nIt takes {has}.", code="unknown-option"
            )
    processes = launcher.processes(job, _chosen(job, _training(roster)))
    of_roles = {name for env in job.role_env.values() for name in env}
    refuse_variables(job, {name for process in processes for name in process.env} - of_roles)
    return processes


def _training(roster: Roster) -> Roster:
    """Return the roster with only the nodes on which jobs begin. Raises RefusedError if there are none."""
    if not roster.workers and roster.leaving:
        raise RefusedError(
            f"all nodes leave the cluster: {roster.leaving[0].reason}\n`phalanx nodes` lists them.", code="no-nodes"
        )
    return roster._replace(nodes=roster.workers)


def refuse_variables(job: PreparedJob, own: Collection[str]) -> None:
    """Raise RefusedError when the user has set one of these, which the launcher (or its engine) sets itself."""
    wrong = [name for name in (*job.env, *job.secrets) if name in own]
    if wrong:
        reason = f"{', '.join(wrong)} can't be set: the launcher {job.launcher} sets it for each process itself"
        raise RefusedError(
            f"{reason}.\nLeave it out of --env and --secret, or give it another name.", code="bad-variable"
        )


def with_recipes(launcher: Launcher, message: str) -> str:
    """Return a failed job's message. If a recipe of the launcher installs what is missing, the first line names it.

    That is the launcher's own program, or a Python package with the name of a recipe.
    """
    first, *others = message.split("\n")
    if launcher.PROGRAM and first.startswith(f"command '{launcher.PROGRAM}' is not on "):
        return "\n".join([first + _installs("; {} installs it", launcher.RECIPES), *others])
    # It ends otherwise for a module of the user's own.
    if first.startswith("no module named ") and first.endswith("requirements.txt"):
        missing = first.partition(" on ")[0]
        named = [name for name in launcher.RECIPES if f"'{name}'" in missing]
        return "\n".join([first + _installs(", or use {}", named), *others])
    return message


def _installs(template: str, recipes: Sequence[str]) -> str:
    return template.format(" or ".join(f"`--recipe {name}`" for name in recipes)) if recipes else ""
