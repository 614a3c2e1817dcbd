"""The starters of an attempt, one on each node: the line to each, the processes started through it, and beats."""

from __future__ import annotations

import _thread
import json
import time
from collections import Counter
from typing import TYPE_CHECKING

from phalanx.runner import frames
from phalanx.runner.head.channel import Channel, answer_over
from phalanx.runner.head.engine_daemons import EngineDaemons, Request, daemon_failure
from phalanx.runner.head.membership import Standing
from phalanx.runner.head.process_table import End, Member, ProcessTable
from phalanx.runner.head.runner_socket import socket_name
from phalanx.runner.liveness import BEAT_EVERY_S
from phalanx.runner.login import Line, log_in
from phalanx.runner.starter.answers import REFUSED
from phalanx.runner.starter.check import needs
from phalanx.runner.system import RUNNER_SOCKET

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Set

    from phalanx.node.roster import Node
    from phalanx.runner.head.run_context import RunContext
    from phalanx.runner.process import PreparedJob, Process

    class Listener(Protocol):
        """Handles what the starters report."""

        def on_checked(self, channel: Channel, body: Dict[str, Any]) -> None:
            """Handle a node's answer to the checks; `body` is that of a CHECKED frame."""
            ...

        def on_request(self, agent: int, host: str, command: str) -> None:
            """Handle the request of an engine's agent for a daemon on a host."""
            ...

        def on_rank(self) -> None:
            """Handle the start of a rank by an engine."""
            ...

        def on_exit(self, number: int, member: Member, end: End) -> None:
            """Handle a process's end; the code of a daemon's `end` shows only unexpected deaths."""
            ...

        def on_leaving(self, channel: Channel, reason: str) -> None:
            """Handle a starter that gives up, and ends all its processes."""
            ...

        def on_trouble(self, node: str, reason: str, is_loss: bool) -> None:
            """Handle data from S3 that a node has lost, or files that did not get there."""
            ...

        def on_doubt(self, node: str, reason: str) -> None:
            """Handle files that may not be in S3."""
            ...

        def on_doing(self, member: Member, text: str) -> None:
            """Handle what a silent rank does, in words."""
            ...

        def on_saving(self) -> None:
            """Handle a node whose report waits for files that are saved in S3."""
            ...

        def on_notice(self, node: str, why: str) -> None:
            """Handle the notice that AWS takes this node back."""
            ...

        def on_closed(self, channel: Channel) -> None:
            """Handle a channel that closed, or is silent; its node's processes are still in the table."""
            ...


# A node that answers the checks within this is believed more than its agent.
_ANSWERS_WITHIN_S = 5.0


class Starters:
    """Starts processes through their nodes' starters, keeps their output and a table of them, and reports events."""

    def __init__(
        self,
        context: RunContext,
        job: PreparedJob,
        nodes: Sequence[Node],
        processes: Sequence[Process],
        dial: Optional[Callable[[str], Line]],
        listener: Listener,
    ) -> None:
        self.nodes = {node.name: node for node in nodes}  # from the roster with which their lines were opened
        self.channels: Dict[str, Channel] = {}
        self.ranks: Counter[str] = Counter()  # node → its planned number
        for process in processes:
            self.ranks.update(process.ranks)
        self.table = ProcessTable()
        self.daemons = EngineDaemons()
        self.is_terminated = False  # TERMINATE was sent, to the ranks at least
        self.has_output = False  # of a rank
        self.wrote_at = 0.0  # when a rank last wrote anything
        self._loop = context.loop
        self._output = context.output
        self._loads = context.loads
        self._loads.steps.begin()
        self._job = job
        self._processes = processes
        self._dial = dial or (lambda node: log_in(job, self.nodes[node]))
        self._listener = listener
        self._standing = Standing()
        self._noticed: Set[str] = set()  # instance ids
        self._askers: List[Callable[[bytes], bool]] = []  # take what the ranks do, and return whether more is wanted
        self._is_dismissed = False

    # Nodes.

    def open_all(self) -> None:
        """Open a line to every node that will have ranks, and start to send beats."""
        for node in self.ranks:
            self.open(node)
        _thread.start_new_thread(self._beat, ())

    def open(self, node: str) -> None:
        """Open a new line to this node's starter, replacing one that has closed, and request the checks."""
        channel = Channel(self._loop, node, self._dial(node), self._on_frame, self._listener.on_closed)
        channel.send(frames.pack_json(frames.CHECK, needs(node, self._job, self._processes)))
        self.channels[node] = channel

    def admit(self, node: Node, ranks: int) -> None:
        """Open a line to a node that joins later; it may be the replacement of a lost node with this name."""
        self.nodes[node.name] = node
        self.ranks[node.name] = ranks
        self.open(node.name)

    def unchecked(self) -> List[str]:
        """Return the nodes that have not answered the checks yet."""
        return [name for name, channel in self.channels.items() if not channel.checked]

    def is_reached(self, node: str) -> bool:
        """Return whether an engine may reach a node.

        Ranks start when it has reached all, so the first node, which checks the imports, must have answered, too.
        """
        return self.channels[node].checked and self.channels[next(iter(self.ranks))].checked

    def connected(self) -> List[Channel]:
        """Return the channels over which a node's report may still come."""
        return [channel for channel in self.channels.values() if not channel.closed]

    def check_contact(self) -> None:
        """Give up nodes that were silent for too long, to this runner or to the head's agent; report leaving ones."""
        self._standing.look()
        for channel in list(self.channels.values()):
            instance_id = self.nodes[channel.node].instance_id
            channel.check_contact()
            if instance_id in self._standing.silent:
                channel.give_up("its agent is silent")
            elif channel.node in self._standing.hung and channel.is_overdue(_ANSWERS_WITHIN_S):
                channel.give_up("its shared directory does not answer")
            elif instance_id in self._standing.leaving.keys() - self._noticed and not channel.closed:
                self._noticed.add(instance_id)
                self._listener.on_notice(channel.node, self._standing.leaving[instance_id])

    def dismiss(self) -> None:
        """Close all lines: a starter that still lives ends all its processes."""
        self._is_dismissed = True
        for channel in self.channels.values():
            channel.shut()

    def _beat(self) -> None:
        """Send beats, in a thread of its own because a hanging shared directory may block the main one for minutes."""
        while not self._is_dismissed:
            time.sleep(BEAT_EVERY_S)
            for channel in list(self.channels.values()):
                channel.beat()

    # Processes.

    def start(self, process: Process) -> None:
        """Start one of the launcher's processes."""
        member = Member(process.label, process.node, process.is_rank, True, process.role, process.service)
        is_first = process == next(filter(_runs_command, self._processes), None)
        self._spawn(member, process.argv, process.env, process.harmless, is_first)

    def serve(self, request: Request) -> None:
        """Start the daemon that an agent requests."""
        label = f"{self._processes[0].label}@{request.node}"
        number = self._spawn(Member(label, request.node, is_rank=False), ("/bin/sh", "-c", request.command), {})
        self.daemons.started(number, request.agent)

    def ask_ranks(self, reason: str) -> None:
        """Ask the ranks to end, for a reason in one word. Their engines do not hear of it yet."""
        self.is_terminated = True
        self._send_to_all(frames.pack_json(frames.TERMINATE, {"only_ranks": True, "reason": reason}))

    def terminate(self, reason: str) -> None:
        """Ask all processes to end."""
        self.is_terminated = True
        self._send_to_all(frames.pack_json(frames.TERMINATE, {"only_ranks": False, "reason": reason}))

    def pass_on_notice(self, reason: str) -> None:
        """Signal all ranks that the job's end is near: a node leaves, or its time is over."""
        self._send_to_all(frames.pack_json(frames.NOTICE, {"reason": reason}))

    def glance(self) -> bool:
        """Ask what the first rank does; `on_doing` gets the answer. Return whether there is a rank."""
        found = self.table.first_rank()
        if found:
            self.channels[found[0]].send(frames.pack(frames.GLANCE, found[1]))
        return found is not None

    def look(self, asker: Callable[[bytes], bool]) -> None:
        """Ask all nodes what their ranks do, and pass each answer on, until no more is wanted."""
        asked = [channel.node for channel in self.connected()]
        if asker(json.dumps({"asked": asked, "ended": self.table.ended_ranks()}).encode() + b"\n"):
            self._askers.append(asker)
            self._send_to_all(frames.pack(frames.LOOK))

    def kick(self) -> None:
        """End only the ranks, so that their engines restart them."""
        self._send_to_all(frames.pack(frames.KICK))

    def sweep(self, grace_s: float) -> None:
        """End everything that is left, and request a report from every node."""
        self._send_to_all(frames.pack_json(frames.END, {"grace_s": grace_s}))

    def forget(self, node: str) -> None:
        """Mark this node's processes as ended, because no report of their ends will come."""
        for number in self.table.live_on(node):
            self._output.ended(number, REFUSED)
            self.table.ended(number)
            self.daemons.ended(number, REFUSED)

    def _spawn(
        self, member: Member, argv: Sequence[str], env: Any, harmless: str = "", reads_stdin: bool = False
    ) -> int:
        node, number = member.node, self._add(member)
        devices = self._job.devices.get(node)
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}
        own = {**visible, **self._job.env, **self._job.secrets, **env}
        if self.nodes[node].head:
            own[RUNNER_SOCKET] = socket_name(self._job.id)
        body = {"argv": list(argv), "env": own, "ranks": self.ranks[node], "harmless": harmless}
        body.update(is_rank=member.is_rank, reads_stdin=reads_stdin)
        self.channels[node].send(frames.pack_json(frames.SPAWN, body, number))
        return number

    def _add(self, member: Member, on_node: Optional[int] = None) -> int:
        number = self._output.add(member.name, member.node, member.is_rank and not member.role)
        self.table.add(number, member, on_node)
        return number

    def _send_to_all(self, frame: bytes) -> None:
        for channel in self.channels.values():
            channel.send(frame)

    # Frames from nodes.

    def _on_frame(self, channel: Channel, frame: frames.Frame) -> None:
        kind, stream, number, payload = frame
        if kind == frames.OUTPUT:
            self._keep(self._number(channel, number), stream, payload)
            return
        if kind == frames.LOAD:
            self._loads.take(channel.node, payload)
            return
        if kind == frames.SAVING:
            self._listener.on_saving()
            return
        body = frames.body_of(kind, payload)
        if kind == frames.RANK:
            self._listener.on_rank()
            self._add(Member(body["label"], channel.node, is_rank=True), number)
        elif kind == frames.EXIT:
            end = End(body["code"], body["at"], body["ending"], body["oom_kills"])
            self._on_exit(self._number(channel, number), end)
        elif kind == frames.CHECKED:
            self._listener.on_checked(channel, body)
        elif kind == frames.ASK:
            self._listener.on_request(answer_over(self._loop, channel, number), body["node"], body["command"])
        elif kind == frames.REPORT:
            channel.report = body
        elif kind == frames.LEAVING:
            self._listener.on_leaving(channel, body["reason"])
        elif kind == frames.TROUBLE:
            self._listener.on_trouble(channel.node, body["reason"], body["is_loss"])
        elif kind == frames.PROGRESS:
            names = ((self.table[self._number(channel, one[0])].ranks_name, one[1:]) for one in body["ranks"])
            self._loads.steps.take(channel.node, names, body["problem"])
        elif kind == frames.STACKS:
            self._pass_on_stacks(channel, body)
        elif kind == frames.UNSURE:
            self._listener.on_doubt(channel.node, body["reason"])
        elif kind == frames.DOING and body["text"]:
            self._listener.on_doing(self.table[self._number(channel, number)], body["text"])

    def _pass_on_stacks(self, channel: Channel, body: Dict[str, Any]) -> None:
        processes = []
        for found in body["processes"]:
            member = self.table[self._number(channel, found["number"])]
            processes.append({**found, "rank": member.name})
        text = json.dumps({"node": channel.node, "tool": body["tool"], "processes": processes}).encode() + b"\n"
        self._askers = [asker for asker in self._askers if asker(text)]

    def _number(self, channel: Channel, number: int) -> int:
        try:
            return self.table.number(channel.node, number)
        except KeyError:
            raise frames.ChannelBrokenError(f"a frame of process {number}, which it did not announce") from None

    def _keep(self, number: int, stream: int, data: bytes) -> None:
        # An engine's output about its own end (torchrun: a page per node) is kept, but not shown: it hides the reason.
        is_rank = self.table[number].is_rank
        if is_rank:
            self.has_output, self.wrote_at = True, time.monotonic()
        listed = not self.is_terminated or is_rank
        self._output.write(number, stream, data, listed)

    def _on_exit(self, number: int, end: End) -> None:
        self._output.ended(number, end.code)
        member = self.table.ended(number)
        if self.daemons.ended(number, end.code):
            end = end._replace(code=daemon_failure(end.code))
        self._listener.on_exit(number, member, end)


def _runs_command(process: Process) -> bool:
    """Whether it is the user's own command, as a worker: engines pass the job's input on by their ranks' keepers."""
    return not process.service and process.argv[: len(process.command)] == process.command
