"""A rolling update of an Auto Scaling group: obsolete instances end in batches, and new ones report before the next.

The order and the words are CloudFormation's (docs/aws-behaviour.md 1.45). Everything runs on the stack's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from localcloud import autoscaling
from localcloud.cloudformation.signals import MISSED, RECEIVED, SUCCESS, Signal, seconds, too_few

POLICY = "AutoScalingRollingUpdate"


@dataclass(frozen=True)
class Policy:
    """What the template says of rolling updates, with AWS's defaults."""

    batch: int
    in_service: int
    percent: int
    pause_s: float
    pause: str
    waits: bool
    suspended: Collection[str]

    @classmethod
    def of(cls, policy: Mapping[str, Any]) -> Policy:
        """Read a resolved UpdatePolicy."""
        given = policy.get(POLICY) or {}
        waits = str(given.get("WaitOnResourceSignals", "false")).lower() == "true"
        pause = str(given.get("PauseTime", "PT5M" if waits else "PT0S"))
        return cls(
            batch=int(given.get("MaxBatchSize", 1)),
            in_service=int(given.get("MinInstancesInService", 0)),
            percent=int(given.get("MinSuccessfulInstancesPercent", 100)),
            pause_s=seconds(pause),
            pause=pause,
            waits=waits,
            suspended=tuple(given.get("SuspendProcesses") or ()),
        )


@dataclass
class Rolling:
    """One rolling update. `say` records an event, `post` runs a step later on the stack's thread, `end` is called once.

    `later(delay_s, step)` sets the only timer.
    """

    policy: Policy
    members: autoscaling.Members
    say: Callable[[str], None]
    post: Callable[..., None]
    later: Callable[[float, Callable[[], None]], None]
    end: Callable[[str | None], None]
    total: int = 0
    failures: int = 0
    _left: list[str] = field(default_factory=list)
    _batch: list[str] = field(default_factory=list)
    _new: set[str] = field(default_factory=set)
    _signals: dict[str, Signal] = field(default_factory=dict)
    _extra: int = 0
    _is_waiting: bool = False

    def begin(self) -> None:
        """Start, or end at once if no instance is obsolete."""
        self._left = self.members.obsolete()
        self.total = len(self._left)
        if not self._left:
            self.end(None)
            return
        desired, most = self.members.desired(), self.members.maximum()
        free = desired - self.policy.in_service
        if free < 1 and desired >= most:
            self.end("MinInstancesInService must be less than the autoscaling group's MaxSize")
            return
        self.members.suspend(self.policy.suspended)
        size = min(self.policy.batch, self.total, free if free > 0 else most - desired)
        self.say(
            f"Rolling update initiated. Terminating {self.total} obsolete instance(s) in batches of {size}, while "
            f"keeping at least {self.policy.in_service} instance(s) in service."
        )
        if free < 1:
            self._extra = size
            self.say(f"Temporarily setting autoscaling group MinSize and DesiredCapacity to {desired + size}.")
            self._change([], size)
        else:
            self._next()

    def _next(self) -> None:
        size = self._extra or min(self.policy.batch, max(1, self.members.desired() - self.policy.in_service))
        self._batch, self._left = self._left[:size], self._left[size:]
        is_last = not self._left
        shrinks = self._extra if is_last else 0
        new = len(self._batch) - shrinks
        self.say(f"Terminating instance(s) [{','.join(self._batch)}]; replacing with {new} new instance(s).")
        self._change(self._batch, -shrinks)

    def _change(self, ids: list[str], by: int) -> None:
        """End instances, and change the group's size; go on when it is complete again."""
        before = set(self.members.ids())
        self.members.replace(ids, by, lambda error: self.post(self._replaced, before, error))

    def _replaced(self, before: set[str], error: str | None) -> None:
        self._new = set(self.members.ids()) - before
        if self._batch:
            done = self.total - len(self._left)
            percent = 100 * done // self.total
            self.say(f"Successfully terminated instance(s) [{','.join(self._batch)}] (Progress {percent}%).")
            self._batch = []
        if error:
            self._finish(error)
        elif not self._new or (not self.policy.waits and not self.policy.pause_s):
            self._batch_done()
        else:
            self._wait()

    def _wait(self) -> None:
        waiting, self._is_waiting = "", True
        if self.policy.waits:
            waiting = f" - Waiting on {len(self._new)} resource signal(s) with a timeout of {self.policy.pause}"
        self.say(f"New instance(s) added to autoscaling group{waiting}.")
        self.later(self.policy.pause_s, self._time_is_up)
        self._look()

    def receive(self, signal: Signal) -> None:
        """Take a signal, perhaps of an instance that is not known yet."""
        if signal.unique_id not in self._signals:
            self._signals[signal.unique_id] = signal
            self.say(RECEIVED.format(signal.status, signal.unique_id))
            self._look()

    def _look(self) -> None:
        if self._is_waiting and self.policy.waits and self._new <= self._signals.keys():
            self._batch_done()

    def _time_is_up(self) -> None:
        if not self._is_waiting:
            return
        missing = self._new - self._signals.keys()
        if self.policy.waits and missing:
            self.failures += len(missing)
            self.say(MISSED.format(len(missing)))
        self._batch_done()

    def _batch_done(self) -> None:
        self._is_waiting = False
        self.failures += sum(self._signals[one].status != SUCCESS for one in self._new & self._signals.keys())
        self._new = set()
        reason = too_few("FAILURE", self.failures, self.total, self.policy.percent) if self.failures else None
        if reason or not self._left:
            self._finish(reason)
        else:
            self._next()

    def _finish(self, reason: str | None) -> None:
        self._is_waiting = False
        self.members.resume(self.policy.suspended)
        if self._extra and self._left:
            self.members.replace([], -self._extra, lambda _error: None)
        self.end(reason)
