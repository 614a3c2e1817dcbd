"""What a launcher is given and what it gives back: data that names processes and starts none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Collection, Mapping, Optional, Protocol, Sequence, Tuple

from phalanx.node.roster import Roster
from phalanx.runner.names import WORK

# Ports that phalanx chooses: above what services of a node use, below those that Linux hands out by itself (32768 on).
FIRST_PORT = 20000
PORTS = 12000


class RefusedError(ValueError):
    """The launcher can't take this job: its first line says what was asked for and what there is."""


@dataclass(frozen=True)
class JobDescription:
    """What the user asked for, and what the head's runner found out before it asks the launcher.

    `processes` and `per_node` are None where the user named no number. `directory` is the job's own, at the same path
    on every node. `engine` is what the launcher's ENGINE command printed on the head ("" when it is not there),
    `master_port` a TCP port that was free there, and `first_port` begins the job's own ports: see `port`. `secrets` are
    variables that the runner alone gives to every process; a launcher puts them into neither argv nor env nor files.
    `nodes_min` and `nodes_max` are set for a job that is to go on with fewer nodes and to grow again; an engine that
    does so may restart its ranks `restarts` times. `options` are the launcher's own (name → text; it says in OPTIONS
    which it takes), `role_env` variables for the processes of one role alone. `hosts` are the only nodes that may be
    used, in this order (none: all); `sync_dir` is where each node gets its own copy of the code, to run in. `devices`
    (node → numbers or names) are the GPUs that a batch scheduler granted where it names them; elsewhere all are the
    job's. `token` is a secret of this job's own, for engines that ask one of those who join, and for nodes' agents,
    which give the job's credentials for it: of what a launcher makes, it may stand in files alone.
    """

    id: str
    launcher: str
    command: Tuple[str, ...]
    directory: str
    processes: Optional[int] = None
    per_node: Optional[int] = None
    name: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    master_port: int = 0
    token: str = field(default="", repr=False)
    first_port: int = FIRST_PORT
    engine: str = ""
    nodes_min: Optional[int] = None
    nodes_max: Optional[int] = None
    restarts: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    role_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    hosts: Tuple[str, ...] = ()
    sync_dir: str = ""
    devices: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def from_record(cls, job: Mapping[str, Any], directory: str, **found: Any) -> JobDescription:
        """What job.json (and the secrets) say of a job in `directory`, and what was `found` out on the head."""
        known = {name: job[name] for name in cls.__dataclass_fields__ if name in job}
        lists = {name: tuple(value) for name, value in known.items() if isinstance(value, list)}
        return cls(**{**known, **lists, "directory": directory, **found})

    @property
    def work(self) -> str:
        """The copy of the user's code; every process starts in it."""
        return f"{self.directory}/{WORK}"

    def port(self, number: int) -> int:
        """The number-th of the job's own ports. A process that names it in `ports` has it: else others are chosen."""
        return FIRST_PORT + (self.first_port - FIRST_PORT + number) % PORTS

    def keeper(self, rank_variable: str) -> Tuple[str, ...]:
        """What an engine starts in the user's command's place: it hands that one's output and exit to the starter.

        Engines' own forwarding is not used: Open MPI 4.1.4's `--tag-output` loses lines (129,037 of 200,000 short ones
        arrived), torchrun's `--tee` polls files. `rank_variable` is the variable in which the engine puts the rank.
        Each word comes after "=": mpiexec takes a word ":" for its own.
        """
        words = (f"={word}" for word in self.command)
        return ("python3", "-IS", f"{self.directory}/keeper.py", rank_variable, *words)


@dataclass(frozen=True)
class Process:
    """One process that the runner starts: the user's own, or an engine that starts the user's.

    `ranks` counts the user's processes on each node that this one is or will start; `command` is what those run, looked
    for on each of these nodes before anything starts. `files` (name → text) are written to the job's directory first;
    those that begin with "#!" are made executable. An engine that is `early` may be started before every node was
    looked at, because it starts no rank until it has reached all of them.

    `places` is what a batch scheduler is to be asked for on each node where the ranks don't tell: where any process
    names some, those count and no ranks.

    `role` is what the process is among the others ("worker", "server"); it comes before the label wherever that is
    shown. A `service` works for the others: once these have all ended well it is ended, and the job is done; its own
    failure before that fails the job. Nothing starts while one of `ports` (TCP) is taken on the process's node.
    `harmless` is a regular expression: what of its output would only alarm people, and is left out.
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

    @property
    def name(self) -> str:
        """What it is called: "worker 3", "scheduler", or the label alone."""
        return f"{self.role} {self.label}".strip()


class Launcher(Protocol):
    """A module of `phalanx.launchers`. It is pure: no process, no file, no clock."""

    NAME: str
    SUMMARY: str
    ENGINE: Tuple[str, ...]  # command whose output on the head goes to JobDescription.engine; () for none
    OPTIONS: Tuple[str, ...]  # names of `phalanx.launchers.options` that it takes
    PROGRAM: str  # that it starts on nodes beside the user's command; "" for none
    RECIPES: Tuple[str, ...]  # that bring its engine

    def processes(self, job: JobDescription, roster: Roster) -> Sequence[Process]:
        """Every process to start. Raises RefusedError when the roster can't take the job."""
        ...


def _chosen(job: JobDescription, roster: Roster) -> Roster:
    """The roster with the job's own nodes alone."""
    if not job.hosts:
        return roster
    gone = [name for name in job.hosts if roster.find(name) is None]
    if gone:
        raise RefusedError(f"{', '.join(gone)}: no longer in the cluster\n`phalanx nodes` lists those that are.")
    return replace(roster, nodes=tuple(node for node in map(roster.find, job.hosts) if node))


def planned(launcher: Launcher, job: JobDescription, roster: Roster) -> Sequence[Process]:
    """What the launcher starts for this job. Raises RefusedError, for an option too that it doesn't take."""
    for name in job.options:
        if name not in launcher.OPTIONS:
            has = ", ".join(f"--{one}" for one in launcher.OPTIONS) or "none of its own"
            raise RefusedError(f"--{name} is no option of the launcher {job.launcher}\nIt takes {has}.")
    processes = launcher.processes(job, _chosen(job, roster))
    of_roles = {name for env in job.role_env.values() for name in env}
    refuse_variables(job, {name for process in processes for name in process.env} - of_roles)
    return processes


def refuse_variables(job: JobDescription, own: Collection[str]) -> None:
    """Raises RefusedError when the user has set one of these, which the launcher (or its engine) sets itself."""
    wrong = [name for name in (*job.env, *job.secrets) if name in own]
    if wrong:
        words = f"{', '.join(wrong)} can't be set: the launcher {job.launcher} sets it for each process itself"
        raise RefusedError(f"{words}.\nLeave it out of --env and --secret, or call it something else.")


def with_recipes(launcher: Launcher, message: str) -> str:
    """The message of a job that failed; one about what a recipe of the launcher brings ends its first line with that.

    That is the launcher's own program, or a Python package that a recipe is called after.
    """
    first, *others = message.split("\n")
    if launcher.PROGRAM and first.startswith(f"command '{launcher.PROGRAM}' is not on "):
        return "\n".join([first + _brings("; {} brings it", launcher.RECIPES), *others])
    if first.startswith("no module named "):
        missing = first.partition(" on ")[0]
        named = [name for name in launcher.RECIPES if f"'{name}'" in missing]
        return "\n".join([first + _brings(", and so does {}", named), *others])
    return message


def _brings(words: str, recipes: Sequence[str]) -> str:
    return words.format(" or ".join(f"`--recipe {name}`" for name in recipes)) if recipes else ""
