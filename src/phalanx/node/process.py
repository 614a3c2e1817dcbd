"""What a launcher is given and what it gives back: data that names processes and starts none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Protocol, Sequence, Tuple

from phalanx.node.roster import Roster

RUNNER = "runner.pyz"
WORK = "work"


class RefusedError(ValueError):
    """The launcher can't take this job: its first line says what was asked for and what there is."""


@dataclass(frozen=True)
class JobDescription:
    """What the user asked for, and what the head's runner found out before it asks the launcher.

    `processes` and `per_node` are None where the user named no number. `directory` is the job's own, at the same path
    on every node. `engine` is what the launcher's ENGINE command printed on the head ("" when it is not there), and
    `master_port` a TCP port that was free there. `secrets` are variables that the runner alone gives to every process;
    a launcher puts them into neither argv nor env nor files. `nodes_min` and `nodes_max` are set for a job that is to
    go on with fewer nodes and to grow again; an engine that does so may restart its ranks `restarts` times.
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
    engine: str = ""
    nodes_min: Optional[int] = None
    nodes_max: Optional[int] = None
    restarts: int = 0

    @property
    def work(self) -> str:
        """The copy of the user's code; every process starts in it."""
        return f"{self.directory}/{WORK}"

    def keeper(self, rank_variable: str) -> Tuple[str, ...]:
        """What an engine starts in the user's command's place: it hands that one's output and exit to the starter.

        Engines' own forwarding is not used: Open MPI 4.1.4's `--tag-output` loses lines (129,037 of 200,000 short ones
        arrived), torchrun's `--tee` polls files. `rank_variable` is the variable in which the engine puts the rank.
        """
        return ("python3", "-IS", f"{self.directory}/keeper.py", rank_variable, *self.command)


@dataclass(frozen=True)
class Process:
    """One process that the runner starts: the user's own, or an engine that starts the user's.

    `ranks` counts the user's processes on each node that this one is or will start; `command` is what those run, looked
    for on each of these nodes before anything starts. `files` (name → text) are written to the job's directory first;
    those that begin with "#!" are made executable. An engine that is `early` may be started before every node was
    looked at, because it starts no rank until it has reached all of them.
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


class Launcher(Protocol):
    """A module of `phalanx.launchers`. It is pure: no process, no file, no clock."""

    NAME: str
    SUMMARY: str
    ENGINE: Tuple[str, ...]  # command whose output on the head goes to JobDescription.engine; () for none

    def processes(self, job: JobDescription, roster: Roster) -> Sequence[Process]:
        """Every process to start. Raises RefusedError when the roster can't take the job."""
        ...
