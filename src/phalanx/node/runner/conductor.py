"""One attempt at a job: from its checks to its proven end on every node (check → run → wind down → sweep)."""

from __future__ import annotations

import _thread
import json
import time
from collections import Counter
from typing import TYPE_CHECKING

from phalanx.node.process import JobDescription, Process
from phalanx.node.roster import Roster
from phalanx.node.runner import frames
from phalanx.node.runner import state as states
from phalanx.node.runner.beats import BEAT_EVERY_S, LOOK_EVERY_S
from phalanx.node.runner.channel import Channel, Line, answer_over, log_in
from phalanx.node.runner.check import needs
from phalanx.node.runner.doorway import REFUSED, answer, socket_name
from phalanx.node.runner.membership import Patience, answer_within_s
from phalanx.node.runner.outcome import ENGINE, NODE, Member, Outcome, daemon_failure
from phalanx.node.runner.reaper import GRACE_S, KILL_WAIT_S
from phalanx.node.runner.stage import Stage
from phalanx.node.runner.system import RUNNER_SOCKET, reap

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

    from phalanx.node.roster import Node
    from phalanx.node.runner.settle import Inquiry

# After a rank failed its engine may say why, before it is asked to end.
_ENGINE_MAY_SPEAK_S = 1.0
_AFTER_TERMINATE_S = 1.0
# Told to end, an engine without ranks only tidies up, or (mpiexec) waits for the daemon of a node that is gone.
_ENGINE_GRACE_S = 2.0
# Beyond what a sweep may take by its own deadlines.
_REPORT_WITHIN_S = 5.0
_TAIL_LINES = 20


class Conductor:
    """Runs one attempt; `run` returns when it has ended on all nodes, and says how."""

    def __init__(
        self,
        stage: Stage,
        job: JobDescription,
        roster: Roster,
        processes: Sequence[Process],
        on_begin: Callable[[List[str], int], None],
        dial: Optional[Callable[[str], Line]] = None,
    ) -> None:
        self.outcome = Outcome()
        self.began_at: Optional[float] = None
        self.gave_up = False
        self.taken: Set[Tuple[str, int]] = set()  # ports that processes were to have: node, port
        self.lost: Set[str] = set()  # nodes
        self._stage = stage
        self._job = job
        self._roster = roster
        self._nodes = {node.name: node for node in roster.nodes}  # as they were when they were opened
        self._processes = list(processes)
        self._on_begin = on_begin
        self._dial = dial or (lambda node: log_in(job, node, self._nodes[node].head))
        self._ranks: Counter[str] = Counter()
        for process in processes:
            self._ranks.update(process.ranks)
        self._members: Dict[int, Member] = {}
        self._numbers: Dict[Tuple[str, int], int] = {}  # node and the starter's own number → member
        self._live: Set[int] = set()
        self._running: Set[int] = set()  # main processes
        self._services: Set[int] = set()  # those of them that work for the others
        self._waiting: List[Tuple[int, str, str]] = []
        self._agents: Dict[int, int] = {}
        self._channels: Dict[str, Channel] = {}
        self._inquiries: Dict[str, Inquiry] = {}  # about nodes that were lost
        self._patience = Patience(roster, can_dial_again=dial is None)
        self._problems: Dict[str, List[str]] = {}  # what is missing → on which nodes
        self._refusal = 0
        self._engines_told = False
        self._phase = self._check
        self._deadline = 0.0
        self._terminate_at = 0.0
        self._rank_grace_s = GRACE_S - _ENGINE_GRACE_S

    def run(self) -> List[Dict[str, Any]]:
        """Conduct it to its end; returns the nodes' verdicts."""
        self._stage.door.request = self._request
        self._connect()
        _thread.start_new_thread(self._beat, ())
        while self._phase != self._over:
            self._stage.loop.turn(self._until_deadline())
            for channel in list(self._channels.values()):
                channel.check_contact()
            self._phase()
            reap()
            self._stage.publish()
        return self._finish()

    # Start.

    def _connect(self) -> None:
        self._deadline = time.monotonic() + answer_within_s(self._job)
        for node in self._ranks:
            self._open(node)
        for process in self._processes:
            if process.early:
                self._start(process)

    def _beat(self) -> None:
        """A thread of its own, because a shared directory that hangs may hold the main one for minutes."""
        while self._phase != self._over:
            time.sleep(BEAT_EVERY_S)
            for channel in list(self._channels.values()):
                channel.beat()

    def _open(self, node: str) -> None:
        channel = Channel(self._stage.loop, node, self._dial(node), self._on_frame, self._lose)
        channel.send(frames.pack_json(frames.CHECK, needs(node, self._job, self._processes)))
        self._channels[node] = channel

    def _start(self, process: Process) -> None:
        member = Member(process.label, process.node, process.is_rank, is_main=True, role=process.role)
        number = self._spawn(member, process.argv, process.env, process.harmless)
        self._running.add(number)
        if process.service:
            self._services.add(number)

    def _spawn(self, member: Member, argv: Sequence[str], env: Any, harmless: str = "") -> int:
        node, number = member.node, self._add(member)
        own = {**self._job.env, **self._job.secrets, **env}
        if self._nodes[node].head:
            own[RUNNER_SOCKET] = socket_name(self._job.id)
        body = {"argv": list(argv), "env": own, "ranks": self._ranks[node], "harmless": harmless}
        self._channels[node].send(frames.pack_json(frames.SPAWN, body, number))
        self._numbers[node, number] = number
        return number

    def _add(self, member: Member) -> int:
        number = self._stage.output.add(member.name, member.node, member.is_rank and not member.role)
        self._members[number] = member
        self._live.add(number)
        return number

    # What nodes and engines say.

    def _on_frame(self, channel: Channel, frame: frames.Frame) -> None:
        kind, stream, number, payload = frame
        if kind == frames.OUTPUT:
            number = self._numbers[channel.node, number]
            # What an engine says about having been ended (torchrun: a page per node) is kept, but hides the reason.
            listed = self._members[number].is_rank or not self._engines_told
            self._stage.output.write(number, stream, payload, listed)
            return
        body = json.loads(payload)
        if kind == frames.RANK:
            self._on_rank(channel, number, body["label"])
        elif kind == frames.EXIT:
            self._on_exit(self._numbers[channel.node, number], body["code"])
        elif kind == frames.CHECKED:
            self._on_checked(channel, body)
        elif kind == frames.ASK:
            self._request(answer_over(self._stage.loop, channel, number), body["node"], body["command"])
        elif kind == frames.REPORT:
            channel.report = body
        elif kind == frames.LEAVING:
            self.lost.add(channel.node)
            self._fail(f"{channel.node} was lost: {body['reason']}", 1, self._witness(channel.node), NODE)
            self._on_loss(channel)

    def _on_rank(self, channel: Channel, number: int, label: str) -> None:
        self._numbers[channel.node, number] = self._add(Member(label, channel.node, True))

    def _on_exit(self, number: int, code: int) -> None:
        member = self._members[number]
        self._stage.output.ended(number, code)
        self._running.discard(number)
        self._live.discard(number)
        if number in self._agents:
            answer(self._agents.pop(number), code)
            code = daemon_failure(code)
        if code != 0:
            self._fail(member.ended_as(code), code if code > 0 else 128 - code, number, member.weight(code))
            self._on_failure(member, code)

    def _on_failure(self, member: Member, _code: int) -> None:
        """A process failed, and the outcome knows it: the job is over."""
        self._wind_down(0.0 if member.is_main else _ENGINE_MAY_SPEAK_S)

    def _on_checked(self, channel: Channel, body: Dict[str, Any]) -> None:
        channel.checked = True
        self.taken.update((channel.node, port) for port in body["taken"])
        if body["problem"]:
            self._problems.setdefault(body["problem"], []).append(channel.node)
            self._refusal = body["code"]
            return
        for request in [one for one in self._waiting if self._may_serve(one[1])]:
            self._waiting.remove(request)
            self._serve(*request)

    def _lose(self, channel: Channel) -> None:
        """A starter's channel has closed, or is silent."""
        if self._phase == self._check and not channel.checked and self._patience.has_for(channel.node):
            self._stage.on_wait(f"{channel.node}: {channel.error}")
            return
        if channel.report is None:
            self._inquire(self._nodes[channel.node])
        elif self._phase in (self._sweeping, self._over):
            return
        self.lost.add(channel.node)
        how = "was lost" if channel.checked else "can't be reached"
        self._fail(f"{channel.node} {how}: {channel.error}", 1, self._witness(channel.node), NODE)
        self._forget_processes_on(channel.node)
        self._on_loss(channel)

    def _on_loss(self, _channel: Channel) -> None:
        """A node is gone, and the outcome knows it: the job is over."""
        self._wind_down(0.0)

    def _inquire(self, node: Node) -> None:
        # Here, because `subprocess` is a sixth of this process's start and only trouble needs it.
        from phalanx.node.runner.settle import Inquiry

        self._inquiries[node.name] = Inquiry(self._job.directory, self._job.id, node)

    def _witness(self, node: str) -> Optional[int]:
        """Whose last lines tell most about the end of this node."""
        ranks = [number for number in self._live_on(node) if self._members[number].is_rank]
        return min(ranks, default=None)

    def _forget_processes_on(self, node: str) -> None:
        """Nobody will tell how they ended."""
        for number in self._live_on(node):
            self._stage.output.ended(number, REFUSED)
            self._running.discard(number)
            self._live.discard(number)
            if number in self._agents:
                answer(self._agents.pop(number), REFUSED)

    def _live_on(self, node: str) -> List[int]:
        return [number for number in self._live if self._members[number].node == node]

    def _request(self, agent: int, host: str, command: str) -> None:
        node = self._roster.find(host)
        if node is None or node.name not in self._channels or self.outcome:
            answer(agent, REFUSED)
        elif self._phase == self._run or self._may_serve(node.name):
            self._serve(agent, node.name, command)
        else:
            self._waiting.append((agent, node.name, command))

    def _may_serve(self, node: str) -> bool:
        """May an engine reach it yet? Ranks start when it has reached all: the first node's imports come before."""
        first = self._channels[next(iter(self._ranks))]
        return self._channels[node].checked and first.checked and not self._problems

    def _serve(self, agent: int, node: str, command: str) -> None:
        label = f"{self._processes[0].label}@{node}"
        number = self._spawn(Member(label, node, is_rank=False), ("/bin/sh", "-c", command), {})
        self._agents[number] = agent

    # Phases: each is called after every event and when its deadline has passed.

    def _check(self) -> None:
        if self._stage.stop_asked:
            self._stop()
        elif not all(channel.checked for channel in self._channels.values()):
            self._try_again()
            self._check_deadline()
        elif self._problems:
            texts = [text.replace("{nodes}", ", ".join(sorted(nodes))) for text, nodes in self._problems.items()]
            self._fail("\n".join(texts), self._refusal, None, ENGINE)
            self._wind_down(0.0)
        else:
            self._begin()

    def _try_again(self) -> None:
        for node in self._patience.due():
            self._channels[node].shut()
            self._open(node)

    def _begin(self) -> None:
        self.began_at = time.time()
        self._tell_begin()
        self._deadline = 0.0
        self._phase = self._run
        for process in self._processes:
            if not process.early:
                self._start(process)

    def _tell_begin(self) -> None:
        self._on_begin(list(self._channels), sum(self._ranks.values()))

    def _check_deadline(self) -> None:
        if self._is_late():
            silent = [name for name, channel in self._channels.items() if not channel.checked]
            self.lost.update(silent)
            within = f"within {answer_within_s(self._job):g} s"
            self._fail(f"no answer from {', '.join(silent)} {within}", 1, None, NODE)
            self._sweep(GRACE_S)

    def _run(self) -> None:
        if self._stage.stop_asked:
            self._stop()
        elif not self._running:
            self._sweep(GRACE_S)
        elif self._running <= self._services:
            self._wind_down(0.0)

    def _stop(self) -> None:
        self.outcome.stop()
        self._wind_down(0.0)

    def _winding_down(self) -> None:
        if not self._running and not self._agents:
            self._sweep(GRACE_S)
        elif self._is_late() and self._terminate_at:
            self._engines_told = True
            self._tell_all(frames.pack(frames.TERMINATE))
            self._terminate_at = 0.0
            self._deadline = time.monotonic() + _ENGINE_GRACE_S
        elif self._is_late() and self._rank_grace_s and not self.lost and self._has_ranks():
            self._deadline += self._rank_grace_s
            self._rank_grace_s = 0.0
        elif self._is_late():
            self._sweep(_AFTER_TERMINATE_S)

    def _sweeping(self) -> None:
        asked = [channel for channel in self._channels.values() if not channel.closed]
        if all(channel.report is not None for channel in asked):
            self._phase = self._over
        elif self._is_late():
            for channel in asked:
                channel.cut()
            self._phase = self._over

    def _over(self) -> None:
        """The last phase: nothing is left to do."""

    def _wind_down(self, after_s: float) -> None:
        if self._phase in (self._winding_down, self._sweeping, self._over):
            return
        self._phase = self._winding_down
        for agent, _, _ in self._waiting:
            answer(agent, REFUSED)
        self._waiting.clear()
        self._terminate_at = self._deadline = time.monotonic() + after_s

    def _sweep(self, grace_s: float) -> None:
        if self._phase in (self._sweeping, self._over):
            return
        self._phase = self._sweeping
        self._deadline = time.monotonic() + grace_s + KILL_WAIT_S + _REPORT_WITHIN_S
        self._tell_all(frames.pack_json(frames.END, {"grace_s": grace_s}))
        self._inquire_elsewhere()

    def _inquire_elsewhere(self) -> None:
        """A process of the job may have logged in to any node, so those that it was not started on are asked too."""
        for node in self._roster.nodes:
            if node.name not in self._channels:
                self._inquire(node)

    def _fail(self, message: str, exit_code: int, number: Optional[int], weight: int) -> None:
        # What processes do after they were told to end is our own doing.
        if not self._engines_told or weight == NODE:
            self.outcome.fail(message, exit_code, number, weight)

    def _tell_all(self, frame: bytes) -> None:
        for channel in self._channels.values():
            channel.send(frame)

    def _has_ranks(self) -> bool:
        return any(self._members[number].is_rank for number in self._live)

    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _until_deadline(self) -> float:
        left = self._deadline - time.monotonic() if self._deadline else LOOK_EVERY_S
        return min(LOOK_EVERY_S, max(0.0, left))

    # The end.

    def _finish(self) -> List[Dict[str, Any]]:
        if self.outcome.number is not None:
            self.outcome.record["tail"] = self._stage.output.tail(self.outcome.number, _TAIL_LINES)
        for name, channel in self._channels.items():
            if channel.report is None and name not in self._inquiries:
                self._inquire(self._nodes[name])
            channel.shut()
        names = [*self._channels, *(name for name in self._inquiries if name not in self._channels)]
        return [self._verdict(name, self._channels.get(name)) for name in names]

    def _verdict(self, node: str, channel: Optional[Channel]) -> Dict[str, Any]:
        if channel is not None and channel.report is not None:
            return states.verdict(node, channel.report)
        return self._inquiries[node].verdict()
