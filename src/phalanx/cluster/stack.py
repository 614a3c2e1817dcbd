"""One stack: created, followed until it is ready or its failure is explained, deleted and proven gone."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.clouds.protocol import Cloud, Resource, StackEvent, StackState
from phalanx.cluster.head_watch import HeadWatch
from phalanx.errors import CloudError
from phalanx.node import validate
from phalanx.node.roster import Roster

if TYPE_CHECKING:
    from phalanx.plan.plan import Plan

# Longer than CloudFormation itself tries, and the time that it takes to roll everything back.
UP_DEADLINE_S = 120 * 60.0
DOWN_DEADLINE_S = 30 * 60.0
FILE_SYSTEM = "AWS::EFS::FileSystem"
ROLE = "AWS::IAM::Role"
# So often a head tells its progress (node.progress).
_QUIET_S = 2.0

# CloudFormation wraps what a node signalled in its own words (docs/aws-behaviour.md 1.10).
_SIGNALLED = re.compile(
    r"^WaitCondition received failed message: '(?P<text>.*)' for uniqueId: (?P<node>\S+?)\.?$", re.S
)


@dataclass(frozen=True)
class NodeAnswered:
    """A node answered; `answered` of `requested` have by now. Until the roster names it, `name` is its instance id."""

    name: str
    address: str
    answered: int
    requested: int


@dataclass(frozen=True)
class NodeMissing:
    """A node will not come, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Leftovers:
    """What still exists although the stack is deleted, one readable line each."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class RoleFreed:
    """Policies that a person gave a role of the stack were taken off, since IAM deletes no role that has one."""

    role: str
    policies: tuple[str, ...]


Progress = StackEvent | NodeAnswered | NodeMissing | Leftovers | RoleFreed


@dataclass(frozen=True)
class Deadline:
    """A point in time, and what is waited for until then."""

    at_s: float
    waiting_for: str

    @classmethod
    def after(cls, seconds: float, waiting_for: str) -> Deadline:
        return cls(time.monotonic() + seconds, waiting_for)

    def check(self, seen: str) -> None:
        if time.monotonic() > self.at_s:
            raise CloudError(
                f"gave up waiting for {self.waiting_for}; the last thing seen: {seen}",
                "The cloud goes on by itself: the same command again goes on waiting.",
            )


@dataclass(frozen=True)
class Stack:
    """A stack that was asked for: where it is, and under which id."""

    cloud: Cloud
    name: str
    stack_id: str


def deploy(cloud: Cloud, plan: Plan, template: str | None = None) -> Stack:
    """Start creating the stack of a plan; `template` defaults to exactly what `phalanx template` prints.

    Raises SpecError for one that is too large to be sent, and for a bucket that can't be used.
    """
    from phalanx.cluster.delivery import bucket_for
    from phalanx.template import synthesize

    template = synthesize(plan) if template is None else template
    bucket = bucket_for(plan, template)
    if bucket:
        cloud.require_bucket(bucket)
    return Stack(cloud, plan.spec.name, cloud.create_stack(plan.spec.name, template, plan.parameters(), bucket))


class Follower:
    """Each event of a stack once, as it comes, until the stack is at rest."""

    def __init__(self, stack: Stack, deadline: Deadline, after: str | None = None) -> None:
        self.stack, self.deadline = stack, deadline
        self.state: StackState | None = None
        self.seen: list[StackEvent] = []
        self._last = after

    def polls(self) -> Iterator[list[StackEvent]]:
        """The new events of each look at the stack. The state is read first, so that the last event is never missed.

        The state, a short answer, is read at every interval (each second at last, where that is longer); the events, a
        long one, when it changed or in their turn: after three intervals, or two seconds where there were none.
        """
        due_at_s, began_s = 0.0, time.monotonic()
        while True:
            before, self.state = self.state, self.stack.cloud.describe_stack(self.stack.stack_id)
            if time.monotonic() >= due_at_s or self.state != before:
                events = self._new_events()
                yield events
                pause_s = 3 * self.stack.cloud.poll_interval_s
                due_at_s = time.monotonic() + (pause_s if events else max(pause_s, _QUIET_S))
            if self.state is None or not self.state.in_progress:
                return
            self.deadline.check(f"{self.state.status} {self.state.reason}".rstrip())
            patience_s = min(1.0, (time.monotonic() - began_s) / 50)
            time.sleep(max(self.stack.cloud.poll_interval_s, patience_s))

    def _new_events(self) -> list[StackEvent]:
        events = self.stack.cloud.events(self.stack.stack_id, self._last)
        if events:
            self._last = events[-1].event_id
            self.seen += events
        return events


class Creation:
    """A stack on its way up. Iterate `steps()`; afterwards `roster()` gives the nodes or raises StackFailed."""

    def __init__(self, stack: Stack, deadline_s: float = UP_DEADLINE_S) -> None:
        self.stack = stack
        self._follower = Follower(stack, Deadline.after(deadline_s, f"stack {stack.name} to be created"))
        self._watch = HeadWatch(stack.cloud)
        self._roster: Roster | None = None
        self._known: set[str] = set()
        self._hopeless = ""

    @property
    def state(self) -> StackState | None:
        return self._follower.state

    @property
    def ready(self) -> bool:
        return self.state is not None and self.state.ready

    def steps(self) -> Iterator[Progress]:
        """Events and nodes as they come, until the stack is complete, rolled back, or without a hope."""
        for events in self._follower.polls():
            yield from events
            yield from self._new_nodes()
            self._hopeless = self._judge_head()
            if self._hopeless:
                return

    def failure(self) -> str:
        """Why the stack did not come up: the first resource that failed of itself."""
        if self._hopeless:
            return self._hopeless
        cause = next((event for event in self._follower.seen if event.is_cause), None)
        if cause is not None:
            return describe_cause(cause)
        if self.state is None:
            return f"stack {self.stack.name} was deleted while it was being created"
        return f"stack {self.stack.name} ended as {self.state.status} {self.state.reason}".rstrip()

    def boot_logs(self) -> dict[str, str]:
        """Log by stream, a node's by its private address. A rollback retains the group, and `Deletion` removes it."""
        group = self._physical_id("LogGroup")
        logs = self.stack.cloud.boot_logs(group) if group else {}
        return {stream: text for stream, text in logs.items() if text}

    def _new_nodes(self) -> Iterator[Progress]:
        # There is no roster before there is a head.
        table = self._physical_id("RosterTable") if self._physical_id("HeadGroup") else ""
        roster = read_roster(self.stack.cloud, table) if table else None
        if roster is None:
            yield from self._answered(table)
        if roster is None or self._roster == roster:
            return
        self._roster = roster
        for position, node in enumerate(roster.nodes, 1):
            if self._is_new(node.instance_id):
                yield NodeAnswered(node.name, node.address, position, roster.requested)
        for missing in roster.missing:
            if self._is_new(missing.name):
                yield NodeMissing(missing.name, missing.reason)

    def _answered(self, table: str) -> Iterator[NodeAnswered]:
        """Before there is a roster: the head, once its agent speaks, and the workers that said hello to it."""
        progress = (self.stack.cloud.item(table, "progress") if table else None) or {}
        self._watch.hear(progress)
        requested = 1 + int(self.state.parameters.get("Workers", 0)) if self.state else 0
        for position, (instance_id, address) in enumerate(_workers(progress.get("answered", "[]")), 2):
            if self._is_new(instance_id):
                yield NodeAnswered(instance_id, address, position, requested)

    def _judge_head(self) -> str:
        """Why a creation under way has no hope; "" as long as it may have."""
        group = self._physical_id("HeadGroup")
        if not group or self._roster or self.state is None or not self.state.creating:
            return ""
        return self._watch.verdict(group, float(self.state.parameters.get("NodeTimeout", 600)))

    def _is_new(self, name: str) -> bool:
        new = name not in self._known
        self._known.add(name)
        return new

    def _physical_id(self, logical_id: str) -> str:
        made = (e.physical_id for e in self._follower.seen if e.logical_id == logical_id and e.physical_id)
        return next(made, "")


def _workers(answered: str) -> list[tuple[str, str]]:
    """Instance and address of those that said hello to the head; what can't be one is left out."""
    try:
        found = validate.parse(answered)
        return [(validate.instance_id(instance_id), validate.address(address)) for instance_id, address in found]
    except (ValueError, TypeError):
        return []


def describe_cause(event: StackEvent) -> str:
    """The reason of a failed resource, without CloudFormation's wrapping around a node's own words."""
    signalled = _SIGNALLED.match(event.reason)
    if signalled:
        return signalled["text"]
    return f"{event.logical_id} ({event.resource_type}): {event.reason or event.status}"


_FORGED = "Only the head's role may write there: who has it may be a job. `phalanx down` and `phalanx up` begin anew."


def read_roster(cloud: Cloud, table: str) -> Roster | None:
    """The published roster, None before the head has written one. Raises CloudError for what can't be one."""
    item = cloud.item(table, "roster")
    return roster_of(item["roster"]) if item and "roster" in item else None


def roster_of(text: str) -> Roster:
    """The roster that the table holds as this text. Raises CloudError for what can't be one."""
    try:
        return validate.roster(text, validate.NETWORK)
    except validate.Invalid as error:
        raise CloudError(f"the roster table holds what can't be a roster: {error}", _FORGED) from error


def read_authority(cloud: Cloud, table: str) -> str:
    """The public key that certifies the cluster's nodes, from the table that only the head's role may write."""
    item = cloud.item(table, "authority")
    if not item:
        raise CloudError(f"table {table} holds no ssh authority", "Is the head up? `phalanx status` shows it.")
    try:
        return validate.key_line(item["public_key"])
    except validate.Invalid as error:
        raise CloudError(f"the roster table holds what can't be an ssh authority: {error}", _FORGED) from error


def require_ours(found: StackState) -> None:
    """Raise CloudError for a stack that phalanx did not make."""
    if not found.ours:
        raise CloudError(
            f"the name {found.name} is in use by a stack that phalanx did not make ({found.status})",
            "Choose another `name` in phalanx.yaml.",
        )


class Deletion:
    """A stack on its way out. Iterate `steps()`: it ends when nothing is left; CloudError names what is.

    A file system may outlive its stack: nothing but those in `file_systems` are deleted with it.
    """

    def __init__(self, stack: Stack, file_systems: Sequence[str] = (), deadline_s: float = DOWN_DEADLINE_S) -> None:
        self.stack, self._file_systems = stack, file_systems
        self._deadline = Deadline.after(deadline_s, f"stack {stack.name} to be deleted")

    def steps(self) -> Iterator[StackEvent | Leftovers | RoleFreed]:
        resources = self._to_go(self.stack.cloud.resources(self.stack.stack_id))
        follower = yield from self._delete()
        if self._stuck(follower):
            yield from self._free_roles(follower)
            # An interface that a Lambda or EFS still held is often free at the second try (docs/aws-behaviour.md 1.22).
            follower = yield from self._delete()
        if self._stuck(follower):
            raise CloudError(*self._why_stuck(follower))
        self._delete_evidence(resources)
        yield from self._prove_gone(resources)

    def _delete(self) -> Generator[StackEvent, None, Follower]:
        cloud, stack_id = self.stack.cloud, self.stack.stack_id
        before = cloud.events(stack_id, None)
        cloud.delete_stack(stack_id)
        follower = Follower(self.stack, self._deadline, after=before[-1].event_id if before else None)
        for events in follower.polls():
            yield from events
        return follower

    def _free_roles(self, follower: Follower) -> Iterator[RoleFreed]:
        refused = {e.physical_id for e in follower.seen if e.status == "DELETE_FAILED" and e.resource_type == ROLE}
        for role in sorted(refused):
            removed = self.stack.cloud.remove_policies(role)
            if removed:
                yield RoleFreed(role, removed)

    @staticmethod
    def _stuck(follower: Follower) -> bool:
        return follower.state is not None and follower.state.status != "DELETE_COMPLETE"

    def _why_stuck(self, follower: Follower) -> tuple[str, str]:
        failed = [e for e in follower.seen if e.status == "DELETE_FAILED" and e.physical_id != self.stack.stack_id]
        lines = [f"  {e.logical_id} ({e.physical_id}): {e.reason}" for e in failed]
        message = "\n".join([f"stack {self.stack.name} could not be deleted:", *lines])
        return message, "Remove what holds these resources, then run `phalanx down` again."

    def _delete_evidence(self, resources: Sequence[Resource]) -> None:
        """The template retains the log group so that a rollback leaves evidence; a wanted end needs none."""
        for resource in resources:
            if resource.resource_type == "AWS::Logs::LogGroup" and resource.physical_id:
                self.stack.cloud.delete_log_group(resource.physical_id)
        for file_system in self._file_systems:
            self.stack.cloud.delete_file_system(file_system)

    def _to_go(self, recorded: Sequence[Resource]) -> list[Resource]:
        """All that must be gone in the end."""
        others = [resource for resource in recorded if resource.resource_type != FILE_SYSTEM]
        return others + [Resource("FileSystem", file_system, FILE_SYSTEM) for file_system in self._file_systems]

    def _prove_gone(self, resources: Sequence[Resource]) -> Iterator[Leftovers]:
        cloud = self.stack.cloud
        deadline = Deadline(self._deadline.at_s, f"everything of {self.stack.name} to be gone")
        told: list[str] = []
        while left := cloud.leftovers(self.stack.name, resources):
            if left != told:
                yield Leftovers(tuple(left))
                told = left
            deadline.check("; ".join(left))
            time.sleep(cloud.poll_interval_s)


def file_systems_of(stack: Stack) -> tuple[str, ...]:
    """Those that the stack itself has made, one that it has kept included."""
    resources = stack.cloud.resources(stack.stack_id)
    return tuple(one.physical_id for one in resources if one.resource_type == FILE_SYSTEM)
