"""The cluster's limits in time, on the head: warn before lease or Capacity Block end, and stop nodes nobody uses.

The lease itself is a scheduled action of both Auto Scaling groups, which no node may change. The head may only lower
the groups to 0; their nodes start again with the user's rights (`phalanx up`).
"""

from __future__ import annotations

import threading
import time
from typing import Callable

from phalanx.node import account, activity
from phalanx.node.agent import Agent
from phalanx.node.aws_client import AwsError

WARNINGS_S = (1800, 600, 120)
_LOOK_MOST_S, _LOOK_LEAST_S = 30.0, 1.0
_ASK_S = 600.0
# EC2 begins to terminate what runs in a Capacity Block this long before its end, and announces that 10 minutes before
# (docs/aws-behaviour.md 2.14, 2.38).
_BLOCK_CLEARED_S, _BLOCK_NOTICE_S = 1800.0, 600.0
_LOST = "What is not in {shared} is lost then: the nodes' own disks end with them."


class Limits:
    """Watch the limits. `notice` is the newest warning, which the head publishes for the workers' terminals.

    `all_leave` is why AWS is about to take back all nodes, or "".

    `used_elsewhere()` returns when a worker was used last. Times are in seconds since the epoch.
    """

    def __init__(self, agent: Agent, used_elsewhere: Callable[[], float]) -> None:
        self.agent, self.notice, self.all_leave = agent, "", ""
        self._used_elsewhere = used_elsewhere
        self._used_at = self._asked_at = 0.0
        self._idle_s, self._topic = 0, ""
        self._block_end = 0.0
        self._due: set[tuple[str, int]] = set()
        self._warned_of_idle = False

    def begin(self) -> None:
        """Watch in a thread, for the cluster's life."""
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                self.look(time.time())
            except AwsError as error:
                self.agent.log.say(f"the cluster's limits can't be read: {error}")
            time.sleep(max(_LOOK_LEAST_S, min(_LOOK_MOST_S, self._idle_s / 10 or _LOOK_MOST_S)))

    def look(self, now: float) -> None:
        """Do what is due now. The first look counts as use: a cluster that was started again knows of no other."""
        self._used_at = self._used_at or now
        if not self._asked_at or now - self._asked_at > _ASK_S:
            self._asked_at = now
            self._idle_s, self._topic = self.agent.fleet.settings(self.agent.settings.stack_id)
            if self.agent.settings.block:
                self._block_end = self.agent.fleet.block_end(self.agent.settings.block)
        end = self.agent.own_group.lease_end()
        if end:
            self._look_at_end("the lease ends", end, now, "all nodes stop. `phalanx extend` moves it.")
        if self._block_end:
            self._look_at_block(self._block_end - _BLOCK_CLEARED_S, now)
        if self._idle_s:
            self._look_at_use(now)

    def _look_at_end(self, what: str, end: float, now: float, then: str) -> None:
        due = {(what, step) for step in WARNINGS_S if end - now <= step}
        if due - self._due:
            self.warn(f"{what} in {_minutes(end - now)}, at {_moment(end)}: {then}")
        self._due = due | {known for known in self._due if known[0] != what}

    def _look_at_block(self, end: float, now: float) -> None:
        self._look_at_end("EC2 clears the Capacity Block", end, now, "it terminates all nodes in it.")
        is_close = end - now <= _BLOCK_NOTICE_S
        self.all_leave = f"EC2 clears the Capacity Block at {_moment(end)}" if is_close else ""

    def _look_at_use(self, now: float) -> None:
        if not self.agent.settled or account.single_uid(self.agent.root):
            self._used_at = now
        self._used_at = max(self._used_at, activity.last_use(), self._used_elsewhere())
        left_s = self._used_at + self._idle_s - now
        if left_s <= 0:
            self._stop()
        elif left_s > min(600, self._idle_s / 3):
            self._warned_of_idle = False
        elif not self._warned_of_idle:
            self._warned_of_idle = True
            unused = _minutes(now - self._used_at)
            self.warn(f"nobody has used the cluster for {unused}; in {_minutes(left_s)} it stops.")

    def _stop(self) -> None:
        self.warn(f"nobody has used the cluster for {_minutes(self._idle_s)}: it stops. `phalanx up` starts it again.")
        self.agent.fleet.stop()
        self.agent.own_group.stop()

    def warn(self, text: str) -> None:
        """Show a warning on this node's terminals, hand it to the workers, and mail it to those who subscribed."""
        cluster, shared = self.agent.settings.cluster, self.agent.settings.shared
        self.notice = f"{cluster}: {text} {_LOST.format(shared=shared)}"
        self.agent.log.say(self.notice)
        activity.show(self.notice)
        if self._topic:
            self.agent.fleet.publish(self._topic, f"phalanx: cluster {cluster}", self.notice)


def _moment(at: float) -> str:
    return time.strftime("%H:%M UTC", time.gmtime(at))


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
