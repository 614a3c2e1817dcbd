"""One attempt at a job: from its checks to its proven end on every node (check → run → shut down → sweep)."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING

from phalanx.counts import first_of
from phalanx.runner import names
from phalanx.runner.files.array import array_of
from phalanx.runner.files.job_record import idle_gpu
from phalanx.runner.files.job_status import JobState
from phalanx.runner.head.ending import ASK_RANKS, GIVE_UP, TERMINATE, NodeReports, Shutdown
from phalanx.runner.head.engine_daemons import Request
from phalanx.runner.head.membership import ANSWER_WITHIN_S, Patience, answer_within_s
from phalanx.runner.head.runner_socket import send_text
from phalanx.runner.head.stall import IdleGpus, Sample, StallWatch, bring_tracer
from phalanx.runner.head.starters import Starters
from phalanx.runner.head.verdict import ENDED_BY_ENGINE, ENGINE, KILLED, NODE, TIMED_OUT, Life, Outcome, over_time
from phalanx.runner.liveness import LOOK_EVERY_S
from phalanx.runner.reaper import GRACE_S, KILL_WAIT_S
from phalanx.runner.starter.check import Findings
from phalanx.runner.system import reap

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence, Set

    from phalanx.node.roster import Roster
    from phalanx.runner.files.job_status import NodeVerdict
    from phalanx.runner.head.channel import Channel
    from phalanx.runner.head.process_table import End, Member
    from phalanx.runner.head.run_context import RunContext
    from phalanx.runner.login import Line
    from phalanx.runner.process import PreparedJob, Process

# After a rank failed, its engine may report why before it is asked to end.
_ENGINE_MAY_SPEAK_S = 1.0
# An engine that ended the rank itself ends the others, too: Open MPI gives them a second before it kills them.
_ENGINE_ENDS_WITHIN_S = 2.5
_AFTER_TERMINATE_S = 1.0
# Added to the deadlines of a sweep itself.
_REPORT_WITHIN_S = 5.0
# More than the agent waits (node.data_mounts).
_SAVED_WITHIN_S = 3700.0
_LONGEST_DOUBT = 500
_TAIL_LINES = 20
_REPORT_COPIES_AFTER_S = 2.0
# What the first rank does is asked after this much silence, and then after twice as long each time.
_SILENT_AFTER_S = 4.0
_LONGEST_ACTIVITY = 300


class AttemptRunner:
    """Takes one attempt through its phases, and decides its outcome; `run` returns when it has ended."""

    def __init__(
        self,
        context: RunContext,
        job: PreparedJob,
        roster: Roster,
        processes: Sequence[Process],
        on_begin: Callable[[Dict[str, int]], None],
        dial: Optional[Callable[[str], Line]] = None,
    ) -> None:
        self.outcome = Outcome()
        self.findings = Findings()
        self.began_at: Optional[float] = None
        self.gave_up = False
        self.ends_job = False  # whether no other attempt may follow
        self.lost: Set[str] = set()  # nodes
        self._boot_ids: Dict[str, str] = {}  # node → the boot in which it was checked
        self._notice = ""
        self._is_saving = False
        self._context = context
        self._job = job
        self._roster = roster
        self._processes = processes
        self._on_begin = on_begin
        self._starters = Starters(context, job, roster.nodes, processes, dial, self)
        self._patience = Patience(roster, can_dial_again=dial is None)
        self._reports = NodeReports(job)
        self._phase = self._check
        self._deadline = 0.0
        self._end = Shutdown(job.grace_s)
        self._look_after_s = _SILENT_AFTER_S
        self._idle_gpus: Optional[IdleGpus] = None
        self._stall: Optional[StallWatch] = None
        self._stalled = ""
        self._last_look: Optional[Sample] = None  # at ranks that were asked to end, and have not
        self._look_at = 0.0
        self._time_is_over_at = math.inf
        self._reason = names.FAILURE  # why the ranks are asked to end

    def run(self) -> List[NodeVerdict]:
        """Run the attempt to its end; return the nodes' verdicts."""
        self._context.socket.request = self.on_request
        self._context.socket.look = lambda client: self._starters.look(partial(send_text, client))
        self._deadline = time.monotonic() + answer_within_s(self._job)
        self._starters.open_all()
        self._start_all(early=True)
        while self._phase != self._over:
            self._context.loop.turn(self._until_deadline())
            self._starters.check_contact()
            self._phase()
            self._look_if_silent()
            reap()
            self._context.publish()
        return self._finish()

    # Phases: each is called after every event and when its deadline has passed.

    def _check(self) -> None:
        silent = self._starters.unchecked()
        if self._context.stop_requested:
            self._stop()
        elif silent:
            self._try_again()
            self._report_copies(silent)
            self._check_deadline(silent)
        elif self.findings:
            self._fail(self.findings.message, self.findings.code, None, ENGINE)
            self._shut_down(0.0)
        else:
            self._begin()

    def _try_again(self) -> None:
        for node in self._patience.due():
            self._starters.channels[node].shut()
            self._starters.open(node)

    def _report_copies(self, silent: Sequence[str]) -> None:
        """Report which nodes still copy what the job needs: the code, or its environment."""
        within_s = answer_within_s(self._job)
        if within_s > ANSWER_WITHIN_S and time.monotonic() > self._deadline - within_s + _REPORT_COPIES_AFTER_S:
            self._context.on_wait(f"copies of what the job needs to {first_of(silent, most=1)}")

    def _check_deadline(self, silent: Sequence[str]) -> None:
        if self._is_late():
            self.lost.update(silent)
            within = f"within {answer_within_s(self._job):g} s"
            self._fail(f"no answer from {first_of(silent)} {within}", 1, None, NODE)
            self._sweep(GRACE_S)

    def _begin(self) -> None:
        self.began_at = time.time()
        self._report_begin()
        self._deadline = 0.0
        self._time_is_over_at = time.monotonic() + self._context.time_left_s()
        self._phase = self._run
        self._start_all(early=False)
        if self._job.stall_s:
            self._stall = StallWatch(self._job.stall_s, self._starters, self._context.loads.steps)
            bring_tracer(self._job.directory)
        if self._job.idle_gpu:
            self._idle_gpus = IdleGpus(*idle_gpu(self._job.idle_gpu))
            self._context.loads.on_gpus = self._idle_gpus.add

    def _report_begin(self) -> None:
        self._on_begin({node: self._starters.ranks[node] for node in self._starters.channels})

    def _start_all(self, early: bool) -> None:
        for process in self._processes:
            if process.early == early:
                self._start(process)

    def _start(self, process: Process) -> None:
        self._starters.start(process)

    def _run(self) -> None:
        if self._context.stop_requested:
            self._stop()
        elif not self._starters.table.running:
            self._sweep(GRACE_S)
        elif self._starters.table.only_services:
            self._shut_down(0.0)
        elif time.monotonic() >= self._time_is_over_at:
            self._time_out()
        elif self._stall and (found := self._stall.check()) is not None:
            self._tell(found, self._stall.last)
        elif self._idle_gpus and (found := self._idle_gpus.check()) is not None:
            self._tell(found, Sample())

    def _tell(self, stalled: str, sample: Sample) -> None:
        """Say that the job stands still, or "" that it goes on."""
        self._stalled = stalled
        self._context.on_notice(stalled)
        if stalled:
            self._on_stall(sample)

    def _time_out(self) -> None:
        """Tell the ranks that catch SIGUSR1 that the time is over. All are asked to end after the job's grace."""
        self.outcome.time_out(over_time(self._job))
        self._reason = names.TIME
        self._starters.pass_on_notice(self._reason)
        self._shut_down(self._job.grace_s)

    def _on_stall(self, sample: Sample) -> None:
        """Keep the stacks of a job that stands still, and do with it what the user said."""
        sample.save(self._job.directory, self._context.output.attempt, self._stalled)
        if self._job.on_stall != "report":
            self.ends_job, self._reason = self._job.on_stall == "stop", names.STALL
            self._fail(self._stalled, TIMED_OUT, self._starters.table.named(sample.odd_rank()), KILLED)
            self._shut_down(0.0)

    def _look_if_silent(self) -> None:
        is_silent = self._phase == self._run and not self._starters.has_output
        if is_silent and self.began_at and time.time() > self.began_at + self._look_after_s:
            self._look_after_s *= 2
            if not self._starters.glance():
                self._say_what_is_done(f"{self._job.launcher} has started no rank yet")

    def _stop(self) -> None:
        self.outcome.stop()
        if self._stalled and not self.ends_job:
            self.outcome.record["message"] += f"; it was {self._stalled}"
        self._reason = names.STOP_REQUEST
        self._shut_down(0.0)

    def _shut_down(self, after_s: float) -> None:
        if self._phase in (self._shutting_down, self._sweeping, self._over):
            return
        self._phase = self._shutting_down
        self._starters.daemons.refuse_all()
        self._deadline = time.monotonic() + after_s
        self._end.begin(self._deadline)

    def _shutting_down(self) -> None:
        table = self._starters.table
        if not (table.running or table.has_ranks or self._starters.daemons):
            self._sweep(_AFTER_TERMINATE_S)
            return
        if self._context.stop_requested:
            self._end.hurry(time.monotonic())
        next_step = self._end.step(time.monotonic(), table.has_ranks)
        self._deadline = self._end.deadline
        if next_step == ASK_RANKS:
            self._starters.ask_ranks(self._reason)
            self._look_at = time.monotonic() + self._job.grace_s / 2
        elif next_step == TERMINATE:
            self._save_last_look()
            self._starters.terminate(self._reason)
        elif self._look_at and time.monotonic() >= self._look_at and table.has_ranks:
            self._look_at, self._last_look = 0.0, Sample()
            self._starters.look(self._last_look.take)
        elif next_step == GIVE_UP:
            self._sweep(_AFTER_TERMINATE_S)

    def _save_last_look(self) -> None:
        """Keep what ranks do that did not end in time, before they are killed; not in place of why the job stalled."""
        if self._last_look and self._starters.table.has_ranks and not self._stalled:
            occasion = f"its ranks did not end within {self._job.grace_s} s of SIGTERM"
            self._last_look.save(self._job.directory, self._context.output.attempt, occasion)

    def _sweep(self, grace_s: float) -> None:
        if self._phase in (self._sweeping, self._over):
            return
        self._phase = self._sweeping
        self._deadline = time.monotonic() + grace_s + KILL_WAIT_S + _REPORT_WITHIN_S
        self._starters.sweep(grace_s)
        # A process of the job may have logged in to any node, so nodes on which none was started are asked, too; after
        # an array, once for all tasks.
        for node in self._roster.nodes:
            if node.name not in self._starters.channels and not array_of(self._job.id):
                self._reports.inquire(node)

    def _sweeping(self) -> None:
        asked = self._starters.connected()
        is_stopped = self._is_saving and self._context.stop_requested
        if is_stopped:
            self.outcome.stop()
        if all(channel.report is not None for channel in asked):
            self._phase = self._over
        elif self._is_late() or is_stopped:
            for channel in asked:
                channel.cut()
            self._phase = self._over

    def _over(self) -> None:
        """The last phase: nothing is left to do."""

    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _until_deadline(self) -> float:
        left = self._deadline - time.monotonic() if self._deadline else LOOK_EVERY_S
        return min(LOOK_EVERY_S, max(0.0, left))

    def _finish(self) -> List[NodeVerdict]:
        if self.outcome.number is not None:
            self.outcome.record["tail"] = tuple(self._context.output.tail(self.outcome.number, _TAIL_LINES))
        for channel in self._starters.channels.values():
            if self._reports.lacks(channel):
                self._reports.inquire(self._starters.nodes[channel.node])
        self._starters.dismiss()
        verdicts = self._reports.verdicts(self._starters.channels)
        self._explain_reboots()
        self._explain_notice()
        return verdicts

    def _explain_reboots(self) -> None:
        """Report a lost node as rebooted if it has answered over a new connection, in another boot of its machine."""
        for node in self.lost & self._boot_ids.keys():
            is_blamed = self.outcome.record.get("message", "").startswith(f"{node} was lost: ")
            if is_blamed and self._reports.boot_id(node) not in ("", self._boot_ids[node]):
                self.outcome.explain(f"{node} rebooted", died=True)

    def _explain_notice(self) -> None:
        """Report a failure after a notice as its consequence: the same program may succeed on the nodes that stay."""
        if self._notice and self.outcome.record["state"] is JobState.FAILED:
            self.outcome.explain(f"{self._notice}: {self.outcome.record['message']}", died=True)

    # Events from the starters.

    def on_checked(self, channel: Channel, body: Dict[str, Any]) -> None:
        """Handle a node's answer to the checks."""
        channel.checked = True
        self._boot_ids[channel.node] = body["boot_id"]
        self.findings.add(channel.node, body)
        for request in self._starters.daemons.due(self._may_serve):
            self._starters.serve(request)

    def on_request(self, agent: int, host: str, command: str) -> None:
        """Handle the request of an engine's agent for a daemon on a host."""
        node = self._roster.find(host)
        request = Request(agent, node.name if node else host, command)
        if node is None or node.name not in self._starters.channels or self.outcome:
            self._starters.daemons.refuse(request)
        elif self._phase == self._run or self._may_serve(node.name):
            self._starters.serve(request)
        else:
            self._starters.daemons.hold(request)

    def _may_serve(self, node: str) -> bool:
        return self._starters.is_reached(node) and not self.findings

    def on_rank(self) -> None:
        """Handle the start of a rank by an engine."""

    def on_exit(self, number: int, member: Member, end: End) -> None:
        """Handle a process's end."""
        code = end.code
        if code == 0:
            return
        # Failures after TERMINATE are its consequence. One before it, by the node's account, may be the first failure,
        # although another node's was received first.
        if not self._starters.is_terminated or (self.outcome and not end.was_ending):
            life, exit_code = Life(self._starters.table.age_s(number), end.at), code if code > 0 else 128 - code
            self.outcome.fail(
                member.ended_as(code) + self._cause(member.node, end), exit_code, number, member.weight(code), life
            )
        self._on_failure(member, code)

    def _cause(self, node: str, end: End) -> str:
        """Return why the kernel may have ended a process, with the memory that its node used before."""
        memory = self._context.loads.memory_of(node) if end.cause and end.oom_kills != 0 else ""
        return f"{end.cause[:-1]}; {memory})" if memory else end.cause

    def _on_failure(self, member: Member, code: int) -> None:
        """End the job after a process failed, which the outcome already contains."""
        if member.is_main:
            self._shut_down(0.0)
        else:
            self._shut_down(_ENGINE_ENDS_WITHIN_S if member.weight(code) == ENDED_BY_ENGINE else _ENGINE_MAY_SPEAK_S)

    def on_leaving(self, channel: Channel, reason: str) -> None:
        """Handle a starter that gives up, and ends all its processes."""
        if self._phase in (self._sweeping, self._over):
            # Every process has ended, and the starter still reports what it found. It waits for no upload, though.
            if self._is_saving:
                self.on_doubt(channel.node, reason)
            return
        self.lost.add(channel.node)
        self._fail(f"{channel.node} was lost: {reason}", 1, self._starters.table.witness(channel.node), NODE)
        self._on_loss(channel)

    def on_trouble(self, node: str, reason: str, is_loss: bool) -> None:
        """Handle data from S3 that a node has lost, which explains what fails then, or files that did not get there."""
        witness = self._starters.table.witness(node) if is_loss else None
        self._fail(f"{node}: {reason}", 1, witness, NODE if is_loss else ENGINE)
        self._shut_down(0.0)

    def on_doubt(self, node: str, reason: str) -> None:
        """Handle files that may not be in S3: a job that has succeeded says so."""
        # Of each node one at most: a job could say thousands.
        self.outcome.doubts.setdefault(node, reason[:_LONGEST_DOUBT])

    def on_doing(self, member: Member, text: str) -> None:
        """Handle what a silent rank does, in words."""
        self._say_what_is_done(f"{member.ranks_name} {text}")

    def _say_what_is_done(self, text: str) -> None:
        if self.began_at and not self._starters.has_output:
            after_s = max(0.0, time.time() - self.began_at)
            self._context.on_silence(f"after {after_s:.0f} s, {text}"[:_LONGEST_ACTIVITY])

    def on_saving(self) -> None:
        """Handle a node whose report waits for files that are saved in S3."""
        self._is_saving = True
        self._deadline = max(self._deadline, time.monotonic() + _SAVED_WITHIN_S)

    def on_notice(self, node: str, why: str) -> None:
        """Handle the notice that AWS takes a node back: the ranks may save their state as long as it is there."""
        self._notice = f"{node} leaves ({why})"
        self._context.on_notice(self._notice)
        self._starters.pass_on_notice(names.SPOT)

    def on_closed(self, channel: Channel) -> None:
        """Handle a starter's channel that has closed, or is silent."""
        node = channel.node
        if self._phase == self._check and not channel.checked and self._patience.allows_retry(node):
            self._context.on_wait(f"{node}: {channel.error}")
            return
        if channel.report is None:
            self._reports.inquire(self._starters.nodes[node])
        elif self._phase in (self._sweeping, self._over):
            return
        self.lost.add(node)
        how = "was lost" if channel.checked else "can't be reached"
        self._fail(f"{node} {how}: {channel.error}", 1, self._starters.table.witness(node), NODE)
        self._starters.forget(node)
        self._on_loss(channel)

    def _on_loss(self, _channel: Channel) -> None:
        """End the job after a node was lost, which the outcome already contains."""
        self._shut_down(0.0)

    def _fail(self, message: str, exit_code: int, number: Optional[int], weight: int) -> None:
        if not self._starters.is_terminated or weight == NODE:
            self.outcome.fail(message, exit_code, number, weight)
