"""A job's attempts, one after another, each on the roster of its time, until one succeeds or a restart is pointless."""

from __future__ import annotations

import math
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.runner.batch.allocation import Allocation, EndedError, request_for
from phalanx.runner.batch.commands import caller
from phalanx.runner.files import state as states
from phalanx.runner.files.job_status import UNCHECKED, Attempt, Held, JobState, JobStatus, NodeVerdict
from phalanx.runner.head.attempt_runner import AttemptRunner
from phalanx.runner.head.checkpoint_copy import CheckpointCopy
from phalanx.runner.head.elastic import ElasticAttemptRunner
from phalanx.runner.head.membership import read_roster
from phalanx.runner.head.planner import Plan, Planner
from phalanx.runner.head.predecessors import Predecessors
from phalanx.runner.head.restarts import decide
from phalanx.runner.head.run_context import RunContext
from phalanx.runner.head.slots import Occupancy, alone, gpus_of, ranks_of
from phalanx.runner.head.verdict import TIMED_OUT, over_time
from phalanx.runner.process import Launcher, Process, RefusedError, planned, with_recipes
from phalanx.runner.system import ENVIRONMENT

if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Set, Tuple

    from phalanx.node.roster import Roster
    from phalanx.runner.batch.scheduling import Scheduler
    from phalanx.runner.files.job_record import JobRecord

_REFUSED = 2
_NO_SLOTS = 1
_LOOK_EVERY_S = 0.5
# So many attempts in a row that began nothing, because a node could not be reached, do not count as restarts.
_FREE_TRIES = 3


class Supervisor:
    """Owns the job's state from its submission (or its runner's death) to its end."""

    def __init__(
        self,
        directory: str,
        job: JobRecord,
        launcher: Launcher,
        status: JobStatus,
        context: RunContext,
        scheduler: Optional[Scheduler] = None,
    ) -> None:
        self._directory = directory
        self._job = job
        self._launcher = launcher
        self.status = status
        self._context = context
        self._scheduler = scheduler
        self._allocation: Optional[Allocation] = None
        self.unreturned = ""  # a message about allocations that could not be given back to the scheduler
        self._attempts = list(status.attempts)
        self._planner = Planner(directory, launcher, context)
        self._unclean: Dict[str, NodeVerdict] = {}  # node → verdict of an earlier attempt
        self._nodes: Tuple[NodeVerdict, ...] = ()  # the last attempt's verdicts
        self._shares = ""  # a message: which slots other jobs use, too
        self._copy: Optional[CheckpointCopy] = None
        self._unreached = ""  # the message of the last attempt, if that began nothing
        self._free_tries = _FREE_TRIES
        context.time_left_s = self._time_left_s
        context.on_wait = self._on_wait
        context.on_notice = lambda text: self._write(message=text)
        context.socket.label = lambda label: self._write(**label)
        context.on_silence = lambda text: self._write(activity=text)

    def run(self) -> None:
        """Run attempts until the job's final state is written."""
        try:
            self._run_attempts()
        finally:
            # After a bug, too: other jobs wait for those places.
            self._release()

    def _run_attempts(self) -> None:
        over = self._wait_for_others() or self._prepare() or self._bring_checkpoints()
        if over:
            self._end(over)
            return
        while True:
            try:
                plan: Optional[Plan] = self._planner.plan(self._job, len(self._attempts))
                plan = self._granted(plan, self._scheduler) if self._scheduler else self._placed(plan)
            except RefusedError as error:
                self._refuse(str(error))
                return
            if plan:
                self._attempt(plan)
            if self.status.state.final:
                return

    def _wait_for_others(self) -> Dict[str, Any]:
        """Wait for the jobs that it follows. Return how it ended, if it was stopped or can't begin.

        A job that had begun before its runner died does not ask again: the others may be removed by now.
        """
        if self.status.started_at or not (self._job.after or self._job.after_any):
            return {}
        message = self.status.message
        over = Predecessors(os.path.dirname(self._directory), self._job).wait(self._context, self._on_wait)
        if over:
            return over
        self._write(message=message)
        return {}

    def _prepare(self) -> Optional[Dict[str, Any]]:
        """Prepare the job's environment, if it has one. Return how the job ended when that failed."""
        if not self._job.environment:
            return None
        # Here, because it takes a tenth of the CPU time of a short job's runner, and many jobs have no environment.
        from phalanx.runner.environments.preparation import Preparation

        head, message = read_roster().head.name, self.status.message
        preparation = Preparation(self._context, self._directory, self._job, head)
        over = preparation.run(lambda text: self._write(message=text))
        if over is None:
            own = {ENVIRONMENT: preparation.path}
            self._job = replace(self._job, env={**preparation.variables(), **self._job.env, **own})
            self._write(message=message)
        return over

    def _bring_checkpoints(self) -> Dict[str, Any]:
        """Bring the checkpoints that the job keeps in S3, if it does. Return how the job ended when that failed."""
        if not self._job.mirror:
            return {}
        message = self.status.message
        copy = CheckpointCopy(self._context, self._directory, self._job.mirror, read_roster().head.name)
        over = copy.begin(lambda text: self._write(message=text))
        if not over:
            self._copy = copy
            self._write(message=message)
        return over

    # One attempt.

    def _attempt(self, plan: Plan) -> None:
        attempt = self._attempt_runner(plan)
        nodes = attempt.run()
        is_taken = self._is_taken_back(attempt)
        if self._has_other_ports(attempt.findings.taken):
            self._attempts.pop()
            return
        self._remember(attempt, plan.roster, nodes)
        if self._is_free(attempt):
            self._attempts.pop()
            return
        self._nodes = self._verdicts(nodes)
        outcome = {**attempt.outcome.record, "nodes": self._nodes}
        outcome["message"] = with_recipes(self._launcher, outcome.get("message", ""))
        if outcome["state"] != JobState.FAILED or self._context.stop_requested or is_taken or attempt.ends_job:
            self._end(outcome)
        else:
            self._end_or_restart(outcome)

    def _attempt_runner(self, plan: Plan) -> AttemptRunner:
        if plan.job.nodes_min is None:
            dial = self._allocation.dial if self._allocation else None
            return AttemptRunner(self._context, *plan, self._on_begin, dial)
        return ElasticAttemptRunner(self._context, *plan, self._on_begin, replan=self._replan)

    def _replan(self) -> Optional[Plan]:
        return self._planner.newer(self._job, len(self._attempts))

    def _end_or_restart(self, outcome: Dict[str, Any]) -> None:
        """Decide after a failed attempt, the last one remembered."""
        decision = decide(self._attempts, self.status.restarts, self._job.restart_on)
        if self._time_left_s() <= 0.0:
            self._end({**outcome, **self._timed_out(f" after {outcome['message']}")})
        elif decision.restart:
            self._report_restart(outcome["message"])
        else:
            reason = f" ({decision.reason})" if decision.reason else ""
            self._end({**outcome, "message": outcome["message"] + reason})

    def _time_left_s(self) -> float:
        """Return how long the job may still run."""
        if not self._job.time_s:
            return math.inf
        return self._job.time_s - (time.time() - (self.status.started_at or time.time()))

    def _timed_out(self, when: str) -> Dict[str, Any]:
        return {"state": JobState.TIMED_OUT, "message": over_time(self._job) + when, "exit_code": TIMED_OUT}

    # Slots that other jobs use.

    def _placed(self, plan: Plan) -> Optional[Plan]:
        """Return the plan on free slots if there are enough; with `wait`, once there are. None: the job has ended."""
        give_up_at = time.monotonic() + self._job.wait_limit_s
        while True:
            with alone(self._directory):
                occupancy = Occupancy(self._directory)
                plan = self._planner.placed(plan, occupancy)
                shared = occupancy.shared(plan.processes, plan.roster)
                earlier = occupancy.earlier(self.status)
                if not (self._job.wait and (shared or earlier)):
                    self._shares = f"it runs on {shared}" if shared else ""
                    self._begin(plan)
                    return plan
            if self._is_over_before_its_turn(earlier or shared, give_up_at):
                return None
            if read_roster().generation != plan.roster.generation:
                plan = self._planner.plan(self._job, len(self._attempts))

    def _is_over_before_its_turn(self, awaited: str, give_up_at: float) -> bool:
        """Wait a moment. Return whether the job has ended, stopped by its user or after its wait limit."""
        self._on_wait(awaited, waits=True)
        self._context.loop.turn(_LOOK_EVERY_S)
        if self._context.stop_requested:
            self._end({"state": JobState.STOPPED, "message": f"stopped on request while waiting for {awaited}"})
        elif self._time_left_s() <= 0.0:
            self._end({**self._timed_out(f" while waiting for {awaited}"), "nodes": self._nodes})
        elif time.monotonic() > give_up_at:
            message = f"waited {self._job.wait_limit_s} s for {awaited}"
            self._end({"state": JobState.FAILED, "message": message, "exit_code": _NO_SLOTS})
        return self.status.state.final

    # Nodes that a batch scheduler grants.

    def _granted(self, plan: Plan, scheduler: Scheduler) -> Optional[Plan]:
        """Return the plan on the nodes that the scheduler grants; None: the job has ended."""
        call = caller(scheduler.NAME, self._directory)
        self._allocation = Allocation(scheduler, call, self._context, self._on_queue, self._on_submitted)
        try:
            there = self._allocation.obtain(request_for(self._job, self._directory, scheduler.NAME, plan.processes))
        except EndedError as error:
            self._end_unbegun(self._allocation.ended_as(error.status), error.status.retryable)
            return None
        if not there:
            message = f"stopped on request while {self.status.message}"
            self._end({"state": JobState.STOPPED, "message": message, "nodes": self._nodes})
            return None
        job = replace(plan.job, devices=self._allocation.devices())
        processes = planned(self._launcher, job, self._allocation.roster(plan.roster))
        granted = Plan(job, plan.roster, processes)
        self._begin(granted)
        return granted

    def _end_unbegun(self, message: str, retryable: bool) -> None:
        """End an attempt whose allocation the scheduler ended before the job could begin."""
        self._release()
        self._attempts.append(Attempt(self._context.output.position, message, died=retryable))
        self._end_or_restart({"state": JobState.FAILED, "message": message, "exit_code": 1, "nodes": self._nodes})

    def _is_taken_back(self, attempt: AttemptRunner) -> bool:
        """Give back the allocation. Return whether the scheduler, or its user, ended the job for good."""
        if self._allocation is None:
            return False
        status = self._allocation.fate() if attempt.outcome.died else None
        if status and status.killed:
            attempt.outcome.explain(self._allocation.ended_as(status), status.retryable)
        self._release()
        return bool(status and status.killed and not status.retryable)

    def _release(self) -> None:
        """Give back the allocation, if there is one. Keep the message, if any, for the job's end."""
        allocation, self._allocation = self._allocation, None
        if allocation is None:
            return
        self.unreturned = "; ".join(filter(None, (self.unreturned, allocation.release())))
        self.status = self.status._replace(allocation=None)

    def _on_queue(self, text: str) -> None:
        if text != self.status.message:
            self._write(state=JobState.PENDING, message=text)

    def _on_submitted(self, allocation: str) -> None:
        # If this runner dies, the process that settles the job gives it back.
        self._write(allocation=Held(self._job.via or "", allocation))

    def _has_other_ports(self, taken: Set[Tuple[str, int]]) -> bool:
        return bool(taken) and self._planner.has_other_ports(self._job, len(self._attempts), taken)

    def _is_free(self, attempt: AttemptRunner) -> bool:
        """Return whether an attempt began nothing for lack of a node, and a new roster or a restart may avoid that."""
        has_begun = attempt.began_at is not None or not attempt.outcome.died
        self._free_tries = _FREE_TRIES if has_begun else self._free_tries - 1
        self._unreached = self._attempts[-1].message
        if has_begun or self._context.stop_requested or self._free_tries < 0:
            return False
        return bool(self.status.restarts) or self._planner.is_outdated()

    def _begin(self, plan: Plan) -> None:
        self._planner.generation = plan.roster.generation
        for process in plan.processes:
            _write_files(self._directory, process)
        self._context.output.attempt = len(self._attempts)
        self._attempts.append(Attempt(self._context.output.position))
        ranks = ranks_of(plan.processes)
        gpus, processes = gpus_of(plan.job, plan.processes, plan.roster), sum(ranks.values())
        self._write(attempt=len(self._attempts) - 1, processes=processes, ranks=ranks, gpus=gpus, waits=False)

    def _on_wait(self, text: str, waits: bool = False) -> None:
        message = f"waiting for {text}"
        if message != self.status.message:
            self._write(state=JobState.PENDING, message=message, waits=waits)

    def _on_begin(self, ranks: Dict[str, int]) -> None:
        began = {"started_at": self.status.started_at or time.time(), "message": self._shares, "activity": ""}
        self._write(state=JobState.RUNNING, ranks=ranks, processes=sum(ranks.values()), **began)

    def _remember(self, attempt: AttemptRunner, roster: Roster, nodes: List[NodeVerdict]) -> None:
        outcome, began_at = attempt.outcome, attempt.began_at
        self._attempts[-1] = self._attempts[-1]._replace(
            message=outcome.record.get("message", ""),
            exit_code=outcome.record.get("exit_code"),
            ran_s=None if began_at is None else time.time() - began_at,
            lived_s=outcome.lived_s,
            died=outcome.died,
            gave_up=attempt.gave_up and not outcome.died,
        )
        # A node that answers over a new connection has lost only its starter.
        gone = {verdict.node for verdict in nodes if verdict.message.startswith(UNCHECKED)}
        self._planner.lost = {node.instance_id for node in roster.nodes if node.name in gone & attempt.lost}

    def _verdicts(self, nodes: List[NodeVerdict]) -> Tuple[NodeVerdict, ...]:
        """Return this attempt's verdicts, and those of earlier attempts on nodes that left without a proof."""
        names = {verdict.node for verdict in nodes}
        earlier = [verdict for name, verdict in self._unclean.items() if name not in names]
        self._unclean = {verdict.node: verdict for verdict in [*earlier, *nodes] if not verdict.clean}
        return (*nodes, *earlier)

    # Between attempts.

    def _report_restart(self, message: str) -> None:
        number = len(self._attempts)
        self._write(state=JobState.PENDING, message=f"restart {number} of {self.status.restarts}: {message}")

    # The end.

    def _refuse(self, text: str) -> None:
        earlier = self._attempts[-1].message if self._attempts else self._unreached
        before = f"{earlier}; it can't start again: " if earlier else ""
        self._end({"state": JobState.FAILED, "message": before + text, "exit_code": _REFUSED, "nodes": self._nodes})

    def _end(self, outcome: Dict[str, Any]) -> None:
        if self._copy:
            outcome = self._copy.end(outcome, lambda text: self._write(message=text))
        if self._context.output.error:
            outcome["message"] = f"{outcome.get('message', '')} ({self._context.output.error})".strip()
        self._release()
        if self.unreturned:
            outcome["message"] = f"{outcome.get('message', '')} ({self.unreturned})".strip()
        self._context.publish()
        load = tuple(self._context.loads.summary())
        over = {"message": "", **outcome, "load": load, "ended_at": time.time()}
        self._context.socket.tell_end(self.status._replace(**over))
        self._context.loads.end()
        self._write(**over)
        self._context.socket.close()
        # After its end was published, because nobody waits for this.
        self._context.output.sync()

    def _write(self, **changes: Any) -> None:
        self.status = self.status._replace(**changes, attempts=tuple(self._attempts))
        self._context.keep(self.status)


def _write_files(directory: str, process: Process) -> None:
    for name, text in process.files.items():
        states.write_file(os.path.join(directory, name), text, 0o700 if text.startswith("#!") else 0o600)
