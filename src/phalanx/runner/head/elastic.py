"""One attempt at a job whose engine survives losses: it continues with the nodes that are left, and grows again."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from phalanx.runner import frames
from phalanx.runner.head.attempt_runner import AttemptRunner
from phalanx.runner.liveness import LOOK_EVERY_S
from phalanx.runner.reaper import GRACE_S

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Sequence

    from phalanx.runner.head.channel import Channel
    from phalanx.runner.head.planner import Plan
    from phalanx.runner.head.process_table import End, Member
    from phalanx.runner.process import Process

    Replan = Callable[[], Optional[Plan]]

_RETRY_AFTER_S = 5.0
# An engine that is killed repeatedly on a node that lives (perhaps out of memory) is given up.
_MAX_REVIVALS = 3


class ElasticAttemptRunner(AttemptRunner):
    """Runs one engine process per node; failures count only when too few of these are left.

    `replan` returns what would be started now, once for each new roster.
    """

    def __init__(self, *arguments: Any, replan: Replan) -> None:
        super().__init__(*arguments)
        assert self._job.nodes_min is not None
        self._fewest = self._job.nodes_min
        self._replan = replan
        self._replan_at = 0.0
        self._planned: Sequence[Process] = ()  # on the newest roster
        self._joining: Dict[str, Process] = {}
        self._invited_at = dict.fromkeys(self._starters.ranks, self._roster.generation)
        self._succeeded = False
        self._engines: Dict[str, Process] = {}
        self._revivals: Counter[str] = Counter()

    def _start(self, process: Process) -> None:
        self._engines[process.node] = process
        super()._start(process)

    def on_rank(self) -> None:
        """Forget the failure that ended the ranks: the engine has restarted them, unless the job is already ending."""
        if self._phase == self._run:
            self.outcome.forgive()
            self._notice = ""

    def on_exit(self, number: int, member: Member, end: End) -> None:
        """Handle a process's end: when one engine succeeds, all the work is done."""
        self._succeeded = self._succeeded or (end.code == 0 and member.is_main)
        super().on_exit(number, member, end)

    def _on_failure(self, member: Member, code: int) -> None:
        if not member.is_main or (code < 0 and self._revive(member.node)):
            return
        self.gave_up = self.gave_up or code > 0
        self._go_on_or_end()

    def _revive(self, node: str) -> bool:
        """Start an engine again that was killed, unless its node is gone, too; return whether that was done."""
        is_over = self._phase != self._run or self._succeeded or self._starters.channels[node].closed
        if is_over or self._revivals[node] >= _MAX_REVIVALS:
            return False
        self._revivals[node] += 1
        # Ends the ranks that it left behind here, and those elsewhere that wait for them.
        self._starters.kick()
        self._start(self._engines[node])
        return True

    def on_closed(self, channel: Channel) -> None:
        """Handle a channel that has closed, or is silent; a node that was about to join is invited again."""
        if self._joining.pop(channel.node, None) is None:
            super().on_closed(channel)
            return
        # The roster may name a node a moment before its contract is complete.
        if channel.report is None:
            self._log_refusal(channel.node, channel.error)
        self._invited_at.pop(channel.node)
        self._replan_at = time.monotonic() + _RETRY_AFTER_S

    @staticmethod
    def _log_refusal(node: str, problem: str) -> None:
        print(f"{node} can't join yet: {problem}", file=sys.stderr, flush=True)

    def _on_loss(self, _channel: Channel) -> None:
        self._go_on_or_end()

    def _go_on_or_end(self) -> None:
        if self._phase != self._run or self._has_too_few():
            self._shut_down(0.0)
        elif not self._succeeded:
            # Ranks may wait for ever for a lost one, so their engines restart them.
            self._starters.kick()

    def _has_too_few(self) -> bool:
        return not self._succeeded and self._starters.table.running < self._fewest

    def _run(self) -> None:
        if not self._starters.table.running and self._succeeded:
            self.outcome.forgive()
        elif time.monotonic() >= self._replan_at:
            self._replan_at = time.monotonic() + LOOK_EVERY_S
            self._grow()
        super()._run()

    def _grow(self) -> None:
        found = self._replan()
        if found:
            self._roster, self._planned = found.roster, found.processes
        # Every time, because a node's replacement may be in the roster before the node's loss is noticed here.
        for process in self._planned:
            channel = self._starters.channels.get(process.node)
            is_new = self._invited_at.get(process.node, 0) < self._roster.generation
            if is_new and not self._succeeded and (channel is None or channel.closed):
                self._invite(process)

    def _invite(self, process: Process) -> None:
        self._invited_at[process.node] = self._roster.generation
        self._reports.withdraw(process.node)
        self._joining[process.node] = process
        node = next(node for node in self._roster.nodes if node.name == process.node)
        self._starters.admit(node, process.ranks[process.node])

    def on_checked(self, channel: Channel, body: Dict[str, Any]) -> None:
        """Handle a node's answer to the checks: one that joins begins, or is sent away."""
        if channel.node not in self._joining:
            super().on_checked(channel, body)
            return
        if body["problem"] or self._phase != self._run:
            self._log_refusal(channel.node, body["problem"])
            channel.send(frames.pack_json(frames.END, {"grace_s": GRACE_S}))
            return
        channel.checked = True
        self._start(self._joining.pop(channel.node))
        self._report_begin()
