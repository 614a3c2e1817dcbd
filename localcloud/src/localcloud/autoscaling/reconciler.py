"""Brings every group to its desired state, on one worker thread that events wake; it never polls."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

from moto.core.exceptions import ServiceException

from localcloud.autoscaling import activity as causes
from localcloud.autoscaling import launching
from localcloud.autoscaling.activity import Activity
from localcloud.autoscaling.group import HISTORY_LIMIT, IN_SERVICE, PENDING, TERMINATING, Group, Member
from localcloud.context import Context
from localcloud.ec2.fleet import Fleet

log = logging.getLogger(__name__)

# Auto Scaling retries without end: seconds apart at first, minutes apart later (docs/aws-behaviour.md 3.9).
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 300.0
# A round for a thousand missing instances must not record a thousand failed activities.
MAX_FAILURES_PER_ROUND = 10
# A round holds the lock: whoever describes a group meanwhile waits for its end.
LAUNCHES_PER_ROUND = 10
# Between two rounds, for threads that wait for the lock: it would otherwise be taken again at once.
PAUSE_S = 0.001
# On a busy machine they take longer to wake up. The worker waits for them, up to this time.
PATIENCE_S = 1.0
# A round that still runs after the stop would act on a cloud that is gone.
STOPPED_WITHIN_S = 10.0
# Failed rounds before CloudFormation is notified; AWS does not document how many it tolerates (aws-behaviour 1.4).
ROUNDS_BEFORE_GIVING_UP = 3

ALL_PROTECTED = "Could not scale to desired capacity because all remaining instances are protected from scale-in."

LAUNCH = "autoscaling:EC2_INSTANCE_LAUNCH"
LAUNCH_ERROR = "autoscaling:EC2_INSTANCE_LAUNCH_ERROR"
TERMINATE = "autoscaling:EC2_INSTANCE_TERMINATE"

Publish = Callable[[Group, str, Activity, str], object]


class Lock:
    """A reentrant lock that can be left to the threads that wait for it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._waiting: list[None] = []

    def __enter__(self) -> None:
        self._waiting.append(None)
        try:
            self._lock.acquire()
        finally:
            self._waiting.pop()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def let_others(self) -> None:
        """Return when nobody waits any more, or at the end of the patience. The caller must not hold the lock."""
        end = time.monotonic() + PATIENCE_S
        time.sleep(PAUSE_S)
        while self._waiting and time.monotonic() < end:
            time.sleep(PAUSE_S)


class Reconciler:
    """Owns the groups. Hold `lock` while reading or changing one, and `touch` it after a change."""

    def __init__(self, context: Context, fleet: Fleet, publish: Publish) -> None:
        self.context = context
        lock = threading.RLock()
        self.lock = Lock(lock)
        self.groups: dict[tuple[str, str], Group] = {}
        self.past: dict[tuple[str, str], list[Activity]] = {}
        """What deleted groups did, by their region and name."""
        self._fleet = fleet
        self._publish = publish
        self._wake = threading.Condition(lock)
        self._dirty: dict[int, Group] = {}
        self._owner: dict[str, Group] = {}
        self._calls: list[Callable[[], object]] = []
        self._stopping = False
        fleet.watchers.append(self._instance_changed)
        context.at_stop(self.stop)
        self._worker = context.spawn(self._work, name="autoscaling")

    def stop(self) -> None:
        """Stop the worker, and wait for its round to end; groups stay as they are."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._worker.join(STOPPED_WITHIN_S)

    def touch(self, group: Group) -> None:
        """Schedule a group for reconciliation."""
        with self._wake:
            self._dirty[id(group)] = group
            self._wake.notify_all()

    def resized(self, group: Group) -> None:
        """Handle a new desired capacity: earlier failures neither delay the next launch nor count against it."""
        if group.retry:
            group.retry.cancel()
        group.failed_rounds, group.retry, group.stuck = 0, None, False
        self.touch(group)

    def end(self, group: Group, member: Member, cause: str) -> None:
        """Start to terminate a member."""
        member.state = TERMINATING
        member.activity = self._record(
            group, f"Terminating EC2 instance: {member.id}", cause, member.zone, member.subnet
        )
        self._fleet.end(member.instance, "Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: Auto Scaling")
        self.touch(group)

    def _instance_changed(self, instance_id: str) -> None:
        with self.lock:
            group = self._owner.get(instance_id)
            if group:
                self.touch(group)

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._dirty or self._stopping)
                if self._stopping:
                    return
                group = self._dirty.pop(next(iter(self._dirty)))
                try:
                    self._reconcile(group)
                except Exception:
                    log.exception("group %s could not be reconciled", group.name)
                calls, self._calls = self._calls, []
            # Outside the lock: the callee may hold locks of its own and call back.
            for call in calls:
                call()
            if self._dirty:
                self.lock.let_others()

    def _reconcile(self, group: Group) -> None:
        self._collect(group)
        if group.deleting and group.forced:
            for member in group.active():
                self.end(group, member, causes.user_terminated(self._now(), member.id, 1, 0))
        else:
            self._shrink(group)
            self._grow(group)
            self._collect(group)
        self._notify_waiters(group)

    def _collect(self, group: Group) -> None:
        """Update the members from the states of their instances."""
        for member in list(group.members.values()):
            state = member.instance.state
            if member.state == TERMINATING:
                if state == "terminated":
                    self._ended(group, member)
            elif state == "running" and member.health == "Healthy":
                if member.state == PENDING:
                    self._in_service(group, member)
            elif state != "pending" and member.state == PENDING:
                self._launch_lost(group, member)
            elif state != "pending":
                self._unhealthy(group, member)

    def _in_service(self, group: Group, member: Member) -> None:
        member.state = IN_SERVICE
        group.failed_rounds = 0
        # AWS notifies while the activity is still in progress: docs/aws-behaviour.md 3.2.
        self._publish(group, LAUNCH, member.activity, member.id)
        member.activity.finish("Successful", self._now())

    def _ended(self, group: Group, member: Member) -> None:
        self._publish(group, TERMINATE, member.activity, member.id)
        member.activity.finish("Successful", self._now())
        self._forget(group, member)

    def _launch_lost(self, group: Group, member: Member) -> None:
        reason = member.instance.state_reason.message
        if member.instance.state != "terminated":
            # It stays a member until terminated: a group must not be gone while its instance holds an interface.
            self._fleet.end(member.instance, "Client.UserInitiatedShutdown", reason)
            return
        message = (
            "Instance became unhealthy while waiting for instance to be in InService state."
            f" Termination Reason: {reason}"
        )
        member.activity.finish("Cancelled", self._now(), message)
        self._publish(group, LAUNCH_ERROR, member.activity, member.id)
        self._forget(group, member)
        self._back_off(group)

    def _unhealthy(self, group: Group, member: Member) -> None:
        by_user = member.health == "Unhealthy"
        if not by_user and "HealthCheck" in group.suspended:
            return
        member.health = "Unhealthy"
        if group.suspended & {"ReplaceUnhealthy", "Terminate"}:
            return
        group.replacing += 1
        now = self._now()
        gone = member.instance.state != "running"
        self.end(group, member, causes.not_running(now) if gone else causes.marked_unhealthy(now))

    def _forget(self, group: Group, member: Member) -> None:
        group.members.pop(member.id, None)
        self._owner.pop(member.id, None)

    def _shrink(self, group: Group) -> None:
        if "Terminate" in group.suspended:
            return
        while (count := len(group.active())) > group.desired:
            victim = _victim(group)
            if victim is None:
                self._record_protected(group)
                return
            self.end(group, victim, causes.shrinking(self._now(), group.why, victim.id, count, count - 1))

    def _record_protected(self, group: Group) -> None:
        if group.stuck:
            return
        group.stuck = True
        self._record(group, ALL_PROTECTED, group.why, "", "").finish("Failed", self._now(), ALL_PROTECTED)

    def _grow(self, group: Group) -> None:
        # Terminating members count: a replacement is launched when its predecessor is gone (aws-behaviour 3.16).
        missing = group.desired - len(group.members)
        if missing <= 0 or group.retry or "Launch" in group.suspended:
            return
        now, failures = self._now(), 0
        cause = causes.growing(now, group.why, group.desired - missing, group.desired)
        for _ in range(min(missing, LAUNCHES_PER_ROUND)):
            launched = self._launch(group, causes.replacing(now) if group.replacing else cause)
            group.replacing = max(0, group.replacing - launched)
            failures += not launched
            if failures >= MAX_FAILURES_PER_ROUND:
                break
        if failures:
            self._back_off(group)
        elif missing > LAUNCHES_PER_ROUND:
            self.touch(group)

    def _launch(self, group: Group, cause: str) -> bool:
        """Launch one instance in the emptiest subnet that has capacity; record each refusal as an activity."""
        for subnet, zone in _emptiest_first(group):
            try:
                instance, template = launching.launch(group, subnet)
            except ServiceException as refusal:
                self._refused(group, cause, subnet, zone, refusal.message)
                continue
            activity = self._record(group, f"Launching a new EC2 instance: {instance.id}", cause, zone, subnet)
            group.members[instance.id] = Member(
                instance, subnet, template, activity, group.protect_new, started=activity.start
            )
            self._owner[instance.id] = group
            return True
        return False

    def _refused(self, group: Group, cause: str, subnet: str, zone: str, reason: str) -> None:
        description, message = causes.failed_launch(reason)
        activity = self._record(group, description, cause, zone, subnet)
        activity.finish("Failed", self._now(), message)
        self._publish(group, LAUNCH_ERROR, activity, "")

    def _back_off(self, group: Group) -> None:
        if group.retry or group.deleting:
            return
        group.failed_rounds += 1
        delay_s = min(FIRST_RETRY_S * 2 ** (group.failed_rounds - 1), LAST_RETRY_S)
        group.retry = self.context.clock.call_later(delay_s, self._retry, group)

    def _retry(self, group: Group) -> None:
        with self.lock:
            group.retry = None
            self.touch(group)

    def _notify_waiters(self, group: Group) -> None:
        """Notify CloudFormation when a group that it waits for is complete, or gone."""
        if group.deleting and not group.members:
            # By now another group may have the same name.
            place = (group.region, group.name)
            if self.groups.get(place) is group:
                del self.groups[place]
                self.past[place] = [*group.activities, *self.past.get(place, ())][:HISTORY_LIMIT]
            self._notify_gone(group, None)
        elif group.deleting and group.stuck:
            # AWS retries for hours and then fails with the same reason.
            group.deleting = False
            self._notify_gone(group, ALL_PROTECTED)
        settled = group.settled
        if settled is None or group.deleting:
            return
        if group.in_service() == len(group.members) == group.desired:
            group.settled = None
            self._calls.append(lambda: settled(None))
        elif group.failed_rounds >= ROUNDS_BEFORE_GIVING_UP:
            group.settled = None
            last = next((a.status_message for a in group.activities if a.status in ("Failed", "Cancelled")), "")
            self._calls.append(lambda: settled(f"Group did not stabilize. Last scaling activity: {last}"))

    def _notify_gone(self, group: Group, error: str | None) -> None:
        self._calls += [lambda notify=notify: notify(error) for notify in group.gone]
        group.gone = []

    def _record(self, group: Group, description: str, cause: str, zone: str, subnet: str) -> Activity:
        activity = Activity(group.name, group.arn, description, cause, zone, subnet, self._now())
        group.activities.appendleft(activity)
        return activity

    def _now(self) -> datetime:
        return self.context.clock.now()


def _emptiest_first(group: Group) -> list[tuple[str, str]]:
    crowd = Counter(member.subnet for member in group.members.values())
    return sorted(zip(group.subnets, group.zones, strict=True), key=lambda place: crowd[place[0]])


def _victim(group: Group) -> Member | None:
    """Pick an unprotected member of the fullest zone, by default the oldest, as AWS does for equal launch templates."""
    crowd = Counter(member.zone for member in group.active())
    fullest = max((crowd[m.zone] for m in group.active() if not m.protected), default=0)
    candidates = [m for m in group.active() if not m.protected and crowd[m.zone] == fullest]
    candidates.sort(key=lambda member: member.started)
    if not candidates:
        return None
    newest = next(iter(group.settings.get("TerminationPolicies") or []), "Default") == "NewestInstance"
    return candidates[-1 if newest else 0]
