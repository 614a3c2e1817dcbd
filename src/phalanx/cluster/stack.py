"""A CloudFormation stack: follow its creation, and explain its failure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from phalanx.aws import change_sets, log_groups, stacks, tables
from phalanx.aws.model import StackEvent, StackState
from phalanx.cluster.head_watch import HeadWatch
from phalanx.counts import first_of
from phalanx.errors import CloudError, ClusterError, NewerFormat
from phalanx.node import validate
from phalanx.node.roster import COMING, Roster

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# Longer than CloudFormation tries to create a stack and takes to roll everything back.
UP_DEADLINE_S = 120 * 60.0
# What makes the head: its Auto Scaling group, or EMR.
_HEAD_MAKERS = ("HeadGroup", "EmrCluster")
# How often a head reports its progress (node.progress).
_QUIET_S = 2.0

# CloudFormation wraps a node's signal in a sentence of its own (docs/aws-behaviour.md 1.10).
_SIGNALLED = re.compile(
    r"^WaitCondition received failed message: '(?P<text>.*)' for uniqueId: (?P<node>\S+?)\.?$", re.S
)


@dataclass(frozen=True)
class NodeAnswered:
    """A node answered: `answered` of `requested` so far. Until the roster names the node, `name` is its instance id."""

    name: str
    address: str
    answered: int
    requested: int

    def __str__(self) -> str:
        return f"{self.name} ({self.address}) answered: {self.answered} of {self.requested}"


@dataclass(frozen=True)
class NodeMissing:
    """A node that will not join, and the reason."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} is missing: {self.reason}"


@dataclass(frozen=True)
class Leftovers:
    """What still exists after the stack was deleted, one readable line each."""

    lines: tuple[str, ...]

    def __str__(self) -> str:
        return f"waiting for these to be deleted too: {first_of(self.lines, '; ')}"


@dataclass(frozen=True)
class RoleFreed:
    """Policies that a person had added to a role of the stack were removed, since IAM deletes no role that has any."""

    role: str
    policies: tuple[str, ...]

    def __str__(self) -> str:
        return f"role {self.role}: {', '.join(self.policies)}, so that it can be deleted"


@dataclass(frozen=True)
class ForeignDeleted:
    """What GuardDuty had made in the cluster's VPC is being deleted, since it keeps the VPC from being deleted."""

    lines: tuple[str, ...]

    def __str__(self) -> str:
        return f"GuardDuty's {', '.join(self.lines)}: deleted, so that the VPC can be deleted"


Progress = StackEvent | NodeAnswered | NodeMissing | Leftovers | RoleFreed | ForeignDeleted


@dataclass(frozen=True)
class Deadline:
    """A point in time, and what the wait until then is for."""

    at_s: float
    waiting_for: str

    @classmethod
    def after(cls, seconds: float, waiting_for: str) -> Deadline:
        return cls(time.monotonic() + seconds, waiting_for)

    def check(self, seen: str) -> None:
        if time.monotonic() > self.at_s:
            raise CloudError(
                f"gave up waiting for {self.waiting_for}; the last thing seen: {seen}",
                "The cloud continues by itself. Run the same command again to continue waiting.",
                code="cloud-timeout",
            )


@dataclass(frozen=True)
class Stack:
    """A stack that was requested: its cloud, name and id."""

    cloud: Aws
    name: str
    stack_id: str


class Follower:
    """Follow a stack, with each event once, until no operation is in progress."""

    def __init__(self, stack: Stack, deadline: Deadline, after: str | None = None) -> None:
        self.stack, self.deadline = stack, deadline
        self.state: StackState | None = None
        self.seen: list[StackEvent] = []
        self._last = after

    def polls(self) -> Iterator[list[StackEvent]]:
        """Yield the new events of each poll. The state is read first, so that the last event is never missed.

        The state is a short answer: it is read at each interval, which grows to one second. The events are a long one:
        they are read when the state changed, and every three intervals, or two seconds if there were no new ones.
        """
        due_at_s, began_s = 0.0, time.monotonic()
        while True:
            before, self.state = self.state, stacks.describe(self.stack.cloud, self.stack.stack_id)
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
        events = stacks.events(self.stack.cloud, self.stack.stack_id, self._last)
        if events:
            self._last = events[-1].event_id
            self.seen += events
        return events


class Creation:
    """A stack being created. Iterate `steps()`; then `ready` shows the outcome, and `failure()` the reason."""

    def __init__(self, stack: Stack, deadline_s: float = UP_DEADLINE_S) -> None:
        self.stack = stack
        self._follower = Follower(stack, Deadline.after(deadline_s, f"stack {stack.name} to be created"))
        self._watch = HeadWatch(stack.cloud)
        self._roster: Roster | None = None
        self._known: set[str] = set()
        self._verdict = ""

    @property
    def state(self) -> StackState | None:
        return self._follower.state

    @property
    def ready(self) -> bool:
        return self.state is not None and self.state.ready

    @property
    def was_deleted(self) -> bool:
        """Whether another command has deleted the stack, of which nothing had failed."""
        is_gone = self.state is None or self.state.status == "DELETE_COMPLETE"
        return is_gone and self._cause() is None

    def steps(self) -> Iterator[Progress]:
        """Yield events and nodes until the stack is complete, rolled back, or can't succeed."""
        for events in self._follower.polls():
            yield from events
            yield from self._new_nodes()
            self._verdict = self._judge_head()
            if self._verdict:
                return

    def failure(self) -> str:
        """Return why the stack was not created: the first resource that failed by itself."""
        if self._verdict:
            return self._verdict
        cause = self._cause()
        if (cause is None or cause.is_unexplained) and self.state is not None:
            refused = change_sets.of_creation(self.stack.cloud, self.stack.stack_id)
            if refused:
                return first_of(map(str, refused), "\n")
        if cause is not None:
            return describe_cause(cause)
        if self.state is None:
            return f"stack {self.stack.name} was deleted while it was being created"
        return f"stack {self.stack.name} ended as {self.state.status} {self.state.reason}".rstrip()

    def _cause(self) -> StackEvent | None:
        return next((event for event in self._follower.seen if event.is_cause), None)

    def boot_logs(self) -> dict[str, str]:
        """Return the logs by stream. A rollback retains the log group, and `Deletion` removes it."""
        group = self._physical_id("LogGroup")
        logs = log_groups.read(self.stack.cloud, group) if group else {}
        return {stream: text for stream, text in logs.items() if text}

    def _new_nodes(self) -> Iterator[Progress]:
        # There is no roster before there is a head.
        table = self._physical_id("RosterTable") if self._physical_id(*_HEAD_MAKERS) else ""
        roster = read_roster(self.stack.cloud, table) if table else None
        if roster is None:
            yield from self._answered(table)
        if roster is None or self._roster == roster:
            return
        self._roster = roster
        yield from news_of(roster, self._known)

    def _answered(self, table: str) -> Iterator[NodeAnswered]:
        """Before there is a roster: the head, once its agent speaks, and the workers that said hello to it."""
        progress = (tables.item(self.stack.cloud, table, "progress") if table else None) or {}
        self._watch.hear(progress)
        requested = self.state.nodes if self.state else 0
        for position, (instance_id, address) in enumerate(_workers(progress.get("answered", "[]")), 2):
            if instance_id not in self._known:
                self._known.add(instance_id)
                yield NodeAnswered(instance_id, address, position, requested)

    def _judge_head(self) -> str:
        """Return why a creation in progress can't succeed; "" while it may."""
        maker = self._physical_id(*_HEAD_MAKERS)
        if not maker or self._roster or self.state is None or not self.state.creating:
            return ""
        verdict = self._watch.verdict(maker, float(self.state.parameters["NodeTimeout"]))
        return verdict or self._watch.lost(self.stack.stack_id)

    def _physical_id(self, *logical_ids: str) -> str:
        made = (e.physical_id for e in self._follower.seen if e.logical_id in logical_ids and e.physical_id)
        return next(made, "")


def _workers(answered: str) -> list[tuple[str, str]]:
    """Return the instances and addresses of workers that contacted the head; [] if they are invalid."""
    try:
        found = validate.parse(answered)
        return [(validate.instance_id(instance_id), validate.address(address)) for instance_id, address in found]
    except (ValueError, TypeError):
        return []


def describe_cause(event: StackEvent) -> str:
    """Return why a resource failed: a node's own message if there is one, or CloudFormation's."""
    signalled = _SIGNALLED.match(event.reason)
    if signalled:
        return signalled["text"]
    return f"{event.logical_id} ({event.resource_type}): {event.reason or event.status}"


_FORGED = "Only the head's role may write there, so a job may have it. Run `phalanx down`, then `phalanx up`."


def read_roster(cloud: Aws, table: str) -> Roster | None:
    """Return the published roster; None before the head has written one. Raises CloudError if it is invalid."""
    item = tables.item(cloud, table, "roster")
    return roster_of(item["roster"]) if item and "roster" in item else None


def require_roster(cloud: Aws, table: str, name: str) -> Roster:
    """Return the published roster of a cluster that is ready. Raises ClusterError if there is none, or CloudError."""
    roster = read_roster(cloud, table)
    if roster is None:
        raise ClusterError(
            f"cluster {name} has no roster",
            "`phalanx status` shows more; `phalanx down`, then `phalanx up` makes the cluster again.",
            code="no-roster",
        )
    return roster


def news_of(roster: Roster, known: set[str]) -> Iterator[NodeAnswered | NodeMissing]:
    """Yield the nodes that answered and those that are missing for a reason, and were not known so far."""
    for position, node in enumerate(roster.nodes, 1):
        if node.instance_id not in known:
            known.add(node.instance_id)
            yield NodeAnswered(node.name, node.address, position, roster.requested)
    for missing in roster.missing:
        if missing.reason != COMING and missing.name not in known:
            known.add(missing.name)
            yield NodeMissing(missing.name, missing.reason)


def are_proven(cloud: Aws, table: str, roster: Roster) -> bool:
    """Return whether the head has logged in to all nodes of the roster."""
    item = tables.item(cloud, table, "generation") or {}
    return (item.get("number"), item.get("proven")) == (str(roster.generation), str(len(roster.nodes)))


class Lacking(NamedTuple):
    """The names of the nodes whose own disks are full, and of those whose shared directory does not answer."""

    room: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


def read_lacking(cloud: Aws, table: str) -> Lacking:
    """Return what nodes lack, as the head has noted it."""
    item = tables.item(cloud, table, "generation") or {}
    try:
        return Lacking(*(tuple(map(validate.node_name, item.get(key, "").split())) for key in ("full", "hung")))
    except validate.Invalid as error:
        raise CloudError(f"the roster table names an invalid node: {error}", _FORGED, code="forged") from error


def roster_of(content: str | bytes) -> Roster:
    """Parse the roster that the table contains. Raises CloudError if it is invalid, NewerFormat."""
    try:
        return validate.roster(content, validate.NETWORKS)
    except validate.Newer as error:
        raise NewerFormat(str(error)) from None
    except validate.Invalid as error:
        raise CloudError(f"the roster table contains an invalid roster: {error}", _FORGED, code="forged") from error


def read_authority(cloud: Aws, table: str) -> str:
    """Return the public key that certifies the cluster's nodes, from the table that only the head's role may write."""
    item = tables.item(cloud, table, "authority")
    if not item:
        raise CloudError(
            f"table {table} contains no ssh authority",
            "`phalanx status` shows whether the head is up.",
            code="no-ssh-authority",
        )
    try:
        return validate.key_line(item["public_key"])
    except validate.Invalid as error:
        raise CloudError(
            f"the roster table contains an invalid ssh authority: {error}", _FORGED, code="forged"
        ) from error


def require_ours(found: StackState) -> None:
    """Raise CloudError for a stack that phalanx did not make."""
    if not found.ours:
        raise CloudError(
            f"the name {found.name} is in use by a stack that phalanx did not make ({found.status})",
            "Choose another `name` in phalanx.yaml.",
            code="name-taken",
        )


@dataclass(frozen=True)
class Note:
    """A sentence of information for the user."""

    text: str

    def __str__(self) -> str:
        return self.text
