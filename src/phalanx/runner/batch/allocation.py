"""A job's allocation from a batch scheduler: requested before an attempt, held during it, and given back."""

from __future__ import annotations

import math
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from phalanx.node.roster import Node, Roster
from phalanx.node.validate import reason
from phalanx.runner import frames
from phalanx.runner.batch.scheduling import ENDED, HELD, AllocationStatus, Request, checked_id, shown, still_holds
from phalanx.runner.head.runner_socket import turn_away
from phalanx.runner.liveness import Pace
from phalanx.runner.login import Line
from phalanx.runner.process import RefusedError

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

    from phalanx.runner.batch.scheduling import Call, Scheduler
    from phalanx.runner.files.job_record import JobRecord
    from phalanx.runner.head.run_context import RunContext
    from phalanx.runner.process import Process

_TURN_S = 0.2
# The queue is queried often at first and rarely later: thousands of jobs may wait in it.
_FIRST_LOOK_S = 0.5
_LAST_LOOK_S = 15.0
# From the grant to the last node's starter; prologs run in between.
_NODES_COME_WITHIN_S = 120.0
# The scheduler's own script ends by itself when all starters have; its daemons report that a moment later.
_ENDS_BY_ITSELF_S = 5.0
# After a node was lost. A busy scheduler reports late that it killed the job, which must not restart then.
_SAYS_WHY_WITHIN_S = 20.0
_ENDS_WITHIN_S = 60.0
# A scheduler that does not answer (its controller restarts) keeps its queue.
_AWAY_WITHIN_S = 600.0
_LOG_TAIL_BYTES = 600
_LONGEST_DESCRIPTION = 1000
# From the grant of the nodes to the job's start, and from the end of its ranks to its own.
_MARGIN_S = 180
_BEAT = frames.pack(frames.BEAT)


class EndedError(Exception):
    """The scheduler ended the allocation before the job could start; `status` describes how."""

    def __init__(self, status: AllocationStatus) -> None:
        super().__init__(status.description)
        self.status = status


@dataclass
class _Attendee:
    """A starter that has connected: its pipes, and the connection that keeps it alive.

    `gpus` are those that the scheduler granted there; None where it does not manage them.
    """

    slots: int
    gpus: Optional[List[str]]
    fds: Sequence[int]
    connection: socket.socket
    dialled: bool = False

    def share_of(self, node: Node) -> Node:
        """Return the node with the job's share of it."""
        return node._replace(slots=self.slots, gpus=node.gpus if self.gpus is None else len(self.gpus))

    def let_go(self) -> None:
        """Release the starter. Close its pipes, unless a channel owns them."""
        self.connection.close()
        for fd in () if self.dialled else self.fds:
            os.close(fd)


class Allocation:
    """One attempt's allocation. `report` is called with its progress, `record` with its id as soon as there is one."""

    def __init__(
        self,
        scheduler: Scheduler,
        call: Call,
        context: RunContext,
        report: Callable[[str], None],
        record: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._call = call
        self._context = context
        self._report = report
        self._record = record
        self._id = ""
        self._log = ""
        self._attendees: Dict[str, _Attendee] = {}
        self._doubled = ""
        self._pace = Pace()
        self._wanted = math.inf
        self._look_at = 0.0
        self._pause_s = _FIRST_LOOK_S
        self._deadline = math.inf
        self._answered_at = time.monotonic()

    def obtain(self, request: Request) -> bool:
        """Submit, and wait until the starters of all granted nodes have connected; False: a stop was requested.

        Raises RefusedError when the scheduler refuses, EndedError when it ends the allocation.
        """
        self._log = request.log
        self._context.socket.attend = self._admit
        self._id = checked_id(self._scheduler.NAME, self._scheduler.submit(request, self._call))
        self._record(self._id)
        self._answered_at = time.monotonic()
        while len(self._attendees) < self._wanted and not self._context.stop_requested:
            self._look()
            self._beat()
            self._context.loop.turn(_TURN_S)
        return not self._context.stop_requested

    def roster(self, whole: Roster) -> Roster:
        """Return the granted nodes, each with the slots and GPUs that were granted there."""
        granted = (self._attendees[node.name].share_of(node) for node in self._present(whole))
        return whole._replace(nodes=tuple(granted))

    def devices(self) -> Dict[str, Tuple[str, ...]]:
        """Return the granted GPUs by node, where the scheduler names them."""
        return {name: tuple(one.gpus) for name, one in self._attendees.items() if one.gpus is not None}

    def dial(self, node: str) -> Line:
        """Return the line to this node's starter."""
        attendee = self._attendees[node]
        attendee.dialled = True
        null = os.open(os.devnull, os.O_RDONLY)
        return Line(attendee.fds[1], attendee.fds[0], null, lambda: attendee.connection.shutdown(socket.SHUT_RDWR))

    def fate(self) -> AllocationStatus:
        """Return the status after a node was lost: the scheduler may need a moment to report that it ended the job."""
        deadline = time.monotonic() + _SAYS_WHY_WITHIN_S
        while True:
            status = self._status_or_held()
            if status.phase == ENDED or time.monotonic() > deadline:
                return status
            time.sleep(_TURN_S)

    def ended_as(self, status: AllocationStatus) -> str:
        """Describe an end before the job's, with the last output of the scheduler's script where that failed."""
        output = "" if status.killed else log_tail(self._log)
        return f"{self._scheduler.NAME} ended {shown(self._id)}: {status.description}" + (
            f": {output}" if output else ""
        )

    def release(self) -> str:
        """Give everything back; return a message for the user, "" when all places are free again."""
        self._context.socket.attend = turn_away
        for attendee in self._attendees.values():
            attendee.let_go()
        self._attendees.clear()
        if not self._id:
            return ""
        try:
            return self._end()
        except RefusedError as error:
            return still_holds(self._scheduler.NAME, self._id, error)

    # While it waits.

    def _look(self) -> None:
        now = time.monotonic()
        if now > self._deadline:
            raise RefusedError(self._incomplete(), code="scheduler")
        if self._doubled:
            raise RefusedError(
                f"{self._scheduler.NAME} put two places of {shown(self._id)} on {self._doubled}, not one\n"
                "Ask for places so large that no two fit on a node (--via-option).",
                code="scheduler",
            )
        if now < self._look_at:
            return
        self._pause_s = min(_LAST_LOOK_S, self._pause_s * 1.5)
        try:
            status = self._status()
            self._answered_at = time.monotonic()
        except RefusedError as error:
            self._excuse(error)
            return
        finally:
            self._look_at = time.monotonic() + self._pause_s
        self._take(status, now)

    def _excuse(self, error: RefusedError) -> None:
        """Report that the scheduler does not answer. Raises the error after _AWAY_WITHIN_S."""
        if time.monotonic() > self._answered_at + _AWAY_WITHIN_S:
            raise error
        first = str(error).partition("\n")[0]
        self._report(f"waiting for {shown(self._id)} of {self._scheduler.NAME}, which does not answer ({first})")

    def _take(self, status: AllocationStatus, now: float) -> None:
        name, number = self._scheduler.NAME, shown(self._id)
        if status.phase == ENDED:
            raise EndedError(status)
        if status.phase == HELD:
            self._deadline = min(self._deadline, now + _NODES_COME_WITHIN_S)
            self._report(f"granted by {name} as {number}; its nodes are coming")
        else:
            # YARN reports an application as running before it has asked for its containers, and Slurm may requeue.
            self._deadline = math.inf
            self._report(f"queued in {name} as {number}" + (f" ({status.description})" if status.description else ""))

    def _beat(self) -> None:
        """Send beats to the connected starters, which would take silence for the runner's end."""
        if self._pace.is_due():
            for attendee in self._attendees.values():
                _send_beat(attendee.fds[1])

    def _incomplete(self) -> str:
        number, came = shown(self._id), len(self._attendees)
        of = f"{came} of {self._wanted} nodes" if came else "no node"
        message = f"{self._scheduler.NAME} granted {number}, but {of} came within {_NODES_COME_WITHIN_S:g} s"
        return f"{message}: {log_tail(self._log)}".rstrip(": ")

    def _status(self) -> AllocationStatus:
        found = self._scheduler.status(self._id, self._call)
        return replace(found, description=reason(found.description)[:_LONGEST_DESCRIPTION])

    def _status_or_held(self) -> AllocationStatus:
        """Return the status; a scheduler that does not answer may still hold the allocation."""
        try:
            return self._status()
        except RefusedError as error:
            return AllocationStatus(HELD, str(error))

    def _admit(self, connection: socket.socket, fds: Sequence[int], hello: Dict[str, Any]) -> None:
        """Accept a starter, and reject those of another allocation, from an earlier attempt."""
        if hello["allocation"] != shown(self._id):
            turn_away(connection, fds, hello)
            return
        if hello["node"] in self._attendees:
            self._doubled = hello["node"]
            turn_away(connection, fds, hello)
            return
        self._wanted = hello["nodes"]
        self._attendees[hello["node"]] = _Attendee(hello["slots"], hello["gpus"], fds, connection)

    def _present(self, whole: Roster) -> list:
        return [node for node in whole.nodes if node.name in self._attendees]

    # The end.

    def _end(self) -> str:
        if self._has_ended_within(_ENDS_BY_ITSELF_S):
            return ""
        self._cancel()
        if self._has_ended_within(_ENDS_WITHIN_S, asked=True):
            return ""
        return f"{self._scheduler.NAME} still says {self._status().description} for {shown(self._id)}"

    def _cancel(self) -> None:
        try:
            self._scheduler.cancel(self._id, self._call)
        except RefusedError:
            # Schedulers refuse to cancel an allocation that ended a moment before.
            if self._status_or_held().phase != ENDED:
                raise

    def _has_ended_within(self, timeout_s: float, asked: bool = False) -> bool:
        """Wait for the end. `asked`: it was cancelled, so one that is shown as queued may end, too."""
        deadline = time.monotonic() + timeout_s
        while (status := self._status_or_held()).phase != ENDED:
            # A queued allocation never ends by itself.
            if time.monotonic() > deadline or (status.phase != HELD and not asked):
                return False
            time.sleep(_TURN_S)
        return True


def _send_beat(fd: int) -> None:
    try:
        os.write(fd, _BEAT)
    except OSError:
        pass  # that starter has died: the attempt's channel to it will report that


def request_for(job: JobRecord, directory: str, scheduler: str, processes: Sequence[Process]) -> Request:
    """Return the request for a launcher's plan; with only -n the scheduler may place the processes freely."""
    ranks: Counter[str] = Counter()
    for places in [one.places for one in processes if one.places] or [one.ranks for one in processes]:
        ranks.update(places)
    anywhere = job.processes is not None and job.per_node is None
    shape = {"processes": sum(ranks.values()), "nodes": len(ranks), "per_node": max(ranks.values())}
    # The ranks have the grace twice, after SIGUSR1 and after SIGTERM.
    limit_s = job.time_s + 2 * job.grace_s + _MARGIN_S if job.time_s else 0
    return Request(job.id, directory, scheduler, **shape, anywhere=anywhere, limit_s=limit_s, options=job.via_options)


def log_tail(path: str) -> str:
    """Return the end of the output of the scheduler's script, on one line; "" when there is none."""
    try:
        with open(path, "rb") as file:
            return " ".join(file.read()[-_LOG_TAIL_BYTES:].decode(errors="replace").split())
    except OSError:
        return ""
