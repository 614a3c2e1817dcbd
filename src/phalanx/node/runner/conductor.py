"""The head's runner: owns a job from its checks to its proven end (check → run → wind down → sweep → final state)."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from phalanx.node.process import RUNNER, JobDescription, Process
from phalanx.node.roster import Roster
from phalanx.node.runner import frames
from phalanx.node.runner import state as states
from phalanx.node.runner.channel import Channel, command_on
from phalanx.node.runner.doorway import Doorway, socket_name
from phalanx.node.runner.loop import Loop
from phalanx.node.runner.output import OutputWriter
from phalanx.node.runner.reaper import GRACE_S, KILL_WAIT_S
from phalanx.node.runner.system import RUNNER_SOCKET, reap

_ANSWER_WITHIN_S = 60.0
# After a rank failed its engine may say why, before it is asked to end.
_ENGINE_MAY_SPEAK_S = 1.0
_AFTER_TERMINATE_S = 1.0
# Beyond what a sweep may take by its own deadlines.
_REPORT_WITHIN_S = 5.0
_TAIL_LINES = 20


@dataclass(frozen=True)
class Member:
    """A process that the job has or had, by its number in the output index."""

    label: str
    node: str
    is_rank: bool
    is_main: bool = False

    def ended_as(self, code: int) -> str:
        name = f"rank {self.label} on {self.node}" if self.is_rank else self.label
        if not self.is_rank and "@" not in name:
            name += f" on {self.node}"
        if code >= 0:
            return f"{name} ended with exit code {code}"
        return f"{name} was ended by {signal.Signals(-code).name}"


class Conductor:
    """Runs one job; `run` returns when its final state is written."""

    def __init__(
        self,
        job: JobDescription,
        roster: Roster,
        processes: Sequence[Process],
        state: states.State,
        door: socket.socket,
    ) -> None:
        self._job = job
        self._roster = roster
        self._processes = list(processes)
        self._state = state
        self._loop = Loop()
        self._door = Doorway(self._loop, door, self._request)
        self._output = OutputWriter(os.path.join(job.directory, "output"))
        self._ranks: Counter[str] = Counter()
        for process in processes:
            self._ranks.update(process.ranks)
        self._members: List[Member] = []
        self._numbers: Dict[Tuple[str, int], int] = {}  # node and the starter's own number → member
        self._running: Set[int] = set()  # main processes
        self._waiting: List[Tuple[int, str, str]] = []
        self._agents: Dict[int, int] = {}
        self._channels: Dict[str, Channel] = {}
        self._problems: Dict[str, List[str]] = {}  # what is missing → on which nodes
        self._refusal = 0
        self._stop_asked = False
        self._engines_told = False
        self._failed: Optional[int] = None
        self._outcome: Dict[str, Any] = {}
        self._outcome_is_weak = False
        self._phase = self._check
        self._deadline = 0.0
        self._terminate_at = 0.0

    def run(self) -> states.State:
        """Conduct the job to its end; returns the final state, which is written."""
        self._watch_signals()
        self._connect()
        while self._phase != self._over:
            self._loop.turn(self._until_deadline())
            self._phase()
            reap()
            self._publish()
        return self._finish()

    # Start.

    def _watch_signals(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_stop)
        self._loop.watch(wake_read, lambda fd: os.read(fd, 4096))

    def _on_stop(self, *_: Any) -> None:
        self._stop_asked = True

    def _connect(self) -> None:
        nodes = list(self._ranks)
        self._state.update(processes=sum(self._ranks.values()), hosts=nodes)
        states.write(self._job.directory, self._state)
        self._deadline = time.monotonic() + _ANSWER_WITHIN_S
        for node in nodes:
            self._open(node)
        self._start(early=True)

    def _open(self, node: str) -> None:
        runner = os.path.join(self._job.directory, RUNNER)
        argv = command_on(node, node == self._roster.head.name, runner, "starter", self._job.id, self._job.work)
        channel = Channel(self._loop, node, argv, self._on_frame, self._on_closed)
        own = [list(process.argv) for process in self._processes if process.node == node]
        command = list(self._processes[0].command)
        channel.send(frames.pack_json(frames.CHECK, {"commands": [command, *own], "env": dict(self._job.env)}))
        self._channels[node] = channel

    def _start(self, early: bool) -> None:
        for process in self._processes:
            if process.early == early:
                number = self._spawn(process.node, process.label, process.argv, process.env, process.is_rank, main=True)
                self._running.add(number)

    def _spawn(self, node: str, label: str, argv: Sequence[str], env: Any, is_rank: bool, main: bool) -> int:
        number = self._add(Member(label, node, is_rank, main))
        own = {**self._job.env, **self._job.secrets, **env}
        if node == self._roster.head.name:
            own[RUNNER_SOCKET] = socket_name(self._job.id)
        body = {"argv": list(argv), "env": own, "ranks": self._ranks[node]}
        self._channels[node].send(frames.pack_json(frames.SPAWN, body, number))
        self._numbers[node, number] = number
        return number

    def _add(self, member: Member) -> int:
        self._members.append(member)
        return self._output.add(member.label, member.node, member.is_rank)

    # What nodes and engines say.

    def _on_frame(self, channel: Channel, frame: frames.Frame) -> None:
        kind, stream, number, payload = frame
        if kind == frames.OUTPUT:
            number = self._numbers[channel.node, number]
            # What an engine says about having been ended (torchrun: a page per node) is kept, but hides the reason.
            listed = self._members[number].is_rank or not self._engines_told
            self._output.write(number, stream, payload, listed)
            return
        body = json.loads(payload)
        if kind == frames.RANK:
            self._numbers[channel.node, number] = self._add(Member(body["label"], channel.node, True))
        elif kind == frames.EXIT:
            self._on_exit(self._numbers[channel.node, number], body["code"])
        elif kind == frames.CHECKED:
            self._on_checked(channel, body)
        elif kind == frames.REPORT:
            channel.report = body

    def _on_exit(self, number: int, code: int) -> None:
        member = self._members[number]
        self._output.ended(number, code)
        self._running.discard(number)
        if number in self._agents:
            self._answer(self._agents.pop(number), code)
        elif code != 0:
            # An engine that gives up (MPI_Abort) ends its ranks so; its own exit code then says more.
            weak = code == -signal.SIGTERM and not member.is_main
            self._fail(member.ended_as(code), code if code > 0 else 128 - code, number, weak)
            self._wind_down(0.0 if member.is_main else _ENGINE_MAY_SPEAK_S)

    def _on_checked(self, channel: Channel, body: Dict[str, Any]) -> None:
        channel.checked = True
        if body["problem"]:
            self._problems.setdefault(body["problem"], []).append(channel.node)
            self._refusal = body["code"]
            return
        for request in [one for one in self._waiting if one[1] == channel.node]:
            self._waiting.remove(request)
            self._serve(*request)

    def _on_closed(self, channel: Channel) -> None:
        if channel.report is not None:
            return
        if channel.checked:
            self._fail(f"{channel.node} was lost: {channel.error}", 1)
        else:
            self._fail(f"{channel.node} can't be reached: {channel.error}", 1)
        self._forget_processes_on(channel.node)
        self._wind_down(0.0)

    def _forget_processes_on(self, node: str) -> None:
        """Nobody will tell how they ended."""
        gone = {number for number, member in enumerate(self._members) if member.node == node}
        self._running -= gone
        for number in gone & set(self._agents):
            self._answer(self._agents.pop(number), 255)

    def _request(self, agent: int, host: str, command: str) -> None:
        node = self._roster.find(host)
        if node is None or node.name not in self._channels or self._outcome:
            self._answer(agent, 255)
        elif self._phase == self._run or (self._channels[node.name].checked and not self._problems):
            self._serve(agent, node.name, command)
        else:
            self._waiting.append((agent, node.name, command))

    def _serve(self, agent: int, node: str, command: str) -> None:
        label = f"{self._processes[0].label}@{node}"
        number = self._spawn(node, label, ("/bin/sh", "-c", command), {}, is_rank=False, main=False)
        self._agents[number] = agent

    @staticmethod
    def _answer(agent: int, code: int) -> None:
        try:
            os.write(agent, f"{code if code >= 0 else 128 - code}\n".encode())
        except OSError:
            pass  # the engine is gone, and its agent with it
        os.close(agent)

    # Phases: each is called after every event and when its deadline has passed.

    def _check(self) -> None:
        if self._stop_asked:
            self._stop()
        elif not all(channel.checked for channel in self._channels.values()):
            self._check_deadline()
        elif self._problems:
            texts = [text.replace("{nodes}", ", ".join(sorted(nodes))) for text, nodes in self._problems.items()]
            self._fail("\n".join(texts), self._refusal)
            self._wind_down(0.0)
        else:
            self._begin()

    def _begin(self) -> None:
        self._state.update(state=states.RUNNING, started_at=time.time())
        states.write(self._job.directory, self._state)
        self._door.tell()
        self._deadline = 0.0
        self._phase = self._run
        self._start(early=False)

    def _check_deadline(self) -> None:
        if self._is_late():
            silent = ", ".join(name for name, channel in self._channels.items() if not channel.checked)
            self._fail(f"no answer from {silent} within {_ANSWER_WITHIN_S:g} s", 1)
            self._sweep(GRACE_S)

    def _run(self) -> None:
        if self._stop_asked:
            self._stop()
        elif not self._running:
            self._sweep(GRACE_S)

    def _stop(self) -> None:
        self._outcome = self._outcome or {"state": states.STOPPED, "message": "stopped on request"}
        self._wind_down(0.0)

    def _winding_down(self) -> None:
        if not self._running and not self._agents:
            self._sweep(GRACE_S)
        elif self._is_late() and self._terminate_at:
            self._engines_told = True
            self._tell_all(frames.pack(frames.TERMINATE))
            self._terminate_at = 0.0
            self._deadline = time.monotonic() + GRACE_S
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
            self._answer(agent, 255)
        self._waiting.clear()
        self._terminate_at = self._deadline = time.monotonic() + after_s

    def _sweep(self, grace_s: float) -> None:
        if self._phase in (self._sweeping, self._over):
            return
        self._phase = self._sweeping
        self._deadline = time.monotonic() + grace_s + KILL_WAIT_S + _REPORT_WITHIN_S
        self._tell_all(frames.pack_json(frames.END, {"grace_s": grace_s}))

    def _fail(self, message: str, exit_code: int, number: Optional[int] = None, weak: bool = False) -> None:
        """The first failure is the job's; a `weak` one makes way for the next, unless that is our own doing."""
        if self._outcome and not (self._outcome_is_weak and not self._engines_told):
            return
        self._failed = number
        self._outcome_is_weak = weak
        self._outcome = {"state": states.FAILED, "message": message, "exit_code": exit_code}

    def _tell_all(self, frame: bytes) -> None:
        for channel in self._channels.values():
            channel.send(frame)

    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _until_deadline(self) -> Optional[float]:
        return max(0.0, self._deadline - time.monotonic()) if self._deadline else None

    def _publish(self) -> None:
        if self._output.flush():
            self._door.tell()

    # The end.

    def _finish(self) -> states.State:
        self._state.update(self._outcome or {"state": states.SUCCEEDED, "exit_code": 0})
        self._state["nodes"] = self._verdicts()
        self._state["ended_at"] = time.time()
        if self._failed is not None:
            self._state["tail"] = self._output.tail(self._failed, _TAIL_LINES)
        if self._output.error:
            self._state["message"] = f"{self._state['message']} ({self._output.error})".strip()
        self._publish()
        states.write(self._job.directory, self._state)
        self._door.tell()
        self._door.close()
        return self._state

    def _verdicts(self) -> List[Dict[str, Any]]:
        silent = [name for name, channel in self._channels.items() if channel.report is None]
        for channel in self._channels.values():
            channel.shut()
        found = {one["node"]: one for one in self._ask_again(silent)}
        return [found.get(name) or states.verdict(name, self._channels[name].report) for name in self._channels]

    def _ask_again(self, nodes: List[str]) -> List[Dict[str, Any]]:
        if not nodes:
            return []
        # Here, because `subprocess` is a sixth of this process's start and only trouble needs it.
        from phalanx.node.runner.settle import verify

        head = self._roster.head.name
        return verify(self._job.directory, self._job.id, [(node, node == head) for node in nodes])
