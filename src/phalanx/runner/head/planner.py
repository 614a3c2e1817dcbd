"""Plans what an attempt starts: the launcher's processes on the present roster, without lost nodes."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from phalanx.node.roster import Roster
from phalanx.runner.files import state as states
from phalanx.runner.head.engine import output_of
from phalanx.runner.head.membership import read_roster
from phalanx.runner.process import FIRST_PORT, PORTS, Launcher, PreparedJob, Process, RefusedError, planned
from phalanx.runner.system import activated

if TYPE_CHECKING:
    from typing import Optional, Sequence, Set, Tuple

    from phalanx.runner.files.job_record import JobRecord
    from phalanx.runner.head.run_context import RunContext
    from phalanx.runner.head.slots import Occupancy

# How long a restart waits for a roster without the lost node, or with its replacement, before it leaves the node out.
_ROSTER_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.2
# A job whose ports are taken gets others: the distance to them, and how often.
_NEXT_PORTS = 97
_PORT_CHOICES = 5


class Plan(NamedTuple):
    """A launcher's input, the roster, and the processes that the launcher returned."""

    job: PreparedJob
    roster: Roster
    processes: Sequence[Process]


class Planner:
    """Plans a job's attempts, one after another, with ports and a token of the job's own.

    `restart` is the attempt's number from 0.
    """

    def __init__(self, directory: str, launcher: Launcher, context: RunContext) -> None:
        self.lost: Set[str] = set()  # instance ids
        self.generation = 0  # of the last attempt's roster
        self._directory = directory
        self._launcher = launcher
        self._context = context
        self._port = 0
        self._token = os.urandom(32).hex()
        self._first_port = FIRST_PORT + int.from_bytes(os.urandom(4), "big") % PORTS
        self._port_choices = 0

    def plan(self, job: JobRecord, restart: int) -> Plan:
        """Plan the next attempt, waiting for another roster after a loss. Raises RefusedError when no roster fits."""
        env = activated({**os.environ, **job.env})
        engine = output_of(self._launcher.ENGINE, env) if self._launcher.ENGINE else ""
        deadline = time.monotonic() + (_ROSTER_WITHIN_S if self.lost else 0.0)
        # One port for the whole attempt: nodes that join later must find the others.
        self._port = _free_port()
        while True:
            is_last = time.monotonic() >= deadline or self._context.stop_requested
            try:
                plan = self._plan_now(job, restart, engine)
                if is_last or plan.roster.generation != self.generation:
                    return plan
            except RefusedError:
                if is_last:
                    raise
            self._context.loop.turn(_LOOK_EVERY_S)

    def placed(self, plan: Plan, occupancy: Occupancy) -> Plan:
        """Return the same plan, on nodes with free slots where the job leaves the choice, and with their free GPUs."""
        job = replace(plan.job, devices={})
        roster = occupancy.roomy(job, plan.roster)
        processes = planned(self._launcher, job, roster)
        free = occupancy.free_gpus(processes, plan.roster)
        if free:
            job = replace(job, devices=free)
            nodes = (node._replace(gpus=len(free.get(node.name, ()))) for node in roster.nodes)
            processes = planned(self._launcher, job, roster._replace(nodes=tuple(nodes)))
        return Plan(job, plan.roster, processes)

    def is_outdated(self) -> bool:
        """Return whether there is another roster than the last attempt's."""
        return read_roster().generation != self.generation

    def newer(self, job: JobRecord, restart: int) -> Optional[Plan]:
        """Return the plan for each new roster, once, for an attempt that grows; else None."""
        if not self.is_outdated():
            return None
        try:
            plan = self._plan_now(job, restart)
        except RefusedError:
            return None  # the attempt reports when too few nodes are left
        self.generation = plan.roster.generation
        return plan

    def has_other_ports(self, job: JobRecord, restart: int, taken: Set[Tuple[str, int]]) -> bool:
        """Choose other ports. Return whether that avoids the taken ones (node, port): not if the user chose them."""
        self._port_choices += 1
        self._first_port += _NEXT_PORTS
        processes = self._plan_now(job, restart).processes
        wanted = {(process.node, port) for process in processes for port in process.ports}
        return self._port_choices < _PORT_CHOICES and not self._context.stop_requested and not wanted & taken

    def _plan_now(self, job: JobRecord, restart: int, engine: str = "") -> Plan:
        roster = read_roster()
        roster = roster._replace(nodes=tuple(node for node in roster.nodes if node.instance_id not in self.lost))
        states.write_file(os.path.join(self._directory, "roster.json"), roster.to_json())
        env = {**job.env, "PHALANX_RESTART": str(restart)}
        found = {"master_port": self._port, "first_port": self._first_port, "engine": engine, "token": self._token}
        prepared = PreparedJob.of(replace(job, env=env), self._directory, **found)
        return Plan(prepared, roster, planned(self._launcher, prepared, roster))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
