"""A cloud in memory: stacks go through events that a test defines, one at each query."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rosters import a_node

from phalanx.aws.model import (
    CLUSTER_TAG,
    ChangeSet,
    Heads,
    Resource,
    Running,
    ScalingActivity,
    SshRoute,
    StackChange,
    StackEvent,
    StackState,
)
from phalanx.cluster.bring_up import BringUp, Note
from phalanx.errors import CloudError
from phalanx.node.roster import Missing, Roster
from phalanx.objects.sent_document import PrivateBucket
from phalanx.plan.money import Prices, Use
from phalanx.plan.plan import Facts
from phalanx.spec.spec import ClusterSpec
from phalanx.template import agent_version

STACK = "AWS::CloudFormation::Stack"
AUTHORITY = "ssh-ed25519 AAAAauthority"


def write_key(private, comment):
    """Write keys as `ssh-keygen` would, without a process; they are never used to log in."""
    private.write_text("a private key\n")
    private.with_suffix(".pub").write_text(f"ssh-ed25519 AAAAC3 {comment}\n")


def demo(**values):
    return ClusterSpec(**{"name": "demo", "nodes": 2, **values})


def up(cloud, **values):
    """Bring the cluster `demo` up; return the result and the notes."""
    making = BringUp(cloud, demo(**values))
    steps = list(making.steps())
    return making.result, [step.text for step in steps if isinstance(step, Note)]


def event(number, logical_id, status, kind="AWS::EC2::VPC", reason=""):
    return StackEvent(f"e{number}", float(number), logical_id, f"physical-{logical_id}", kind, status, reason)


def roster(count=2, missing=()):
    nodes = tuple(a_node(number) for number in range(1, count + 1))
    return Roster("demo", 1, count + len(missing), 1, nodes, tuple(missing))


READY = [
    event(1, "demo", "CREATE_IN_PROGRESS", STACK),
    event(2, "Vpc", "CREATE_IN_PROGRESS"),
    event(3, "Vpc", "CREATE_COMPLETE"),
    event(4, "RosterTable", "CREATE_COMPLETE", "AWS::DynamoDB::Table"),
    event(5, "HeadGroup", "CREATE_COMPLETE", "AWS::AutoScaling::AutoScalingGroup"),
    event(6, "demo", "CREATE_COMPLETE", STACK),
]
HEAD_FAILED = [
    event(1, "demo", "CREATE_IN_PROGRESS", STACK),
    event(2, "LogGroup", "CREATE_COMPLETE", "AWS::Logs::LogGroup"),
    event(
        3,
        "Ready1",
        "CREATE_FAILED",
        "AWS::CloudFormation::WaitCondition",
        "WaitCondition received failed message: 'boot script failed: `false` ended with 1' for uniqueId: i-1",
    ),
    event(4, "HeadGroup", "CREATE_FAILED", "AWS::AutoScaling::AutoScalingGroup", "Resource creation cancelled"),
    event(5, "demo", "ROLLBACK_IN_PROGRESS", STACK),
    event(6, "demo", "ROLLBACK_COMPLETE", STACK),
]


UPDATED = [
    event(11, "demo", "UPDATE_IN_PROGRESS", STACK),
    event(12, "HeadGroup", "UPDATE_COMPLETE", "AWS::AutoScaling::AutoScalingGroup"),
    event(13, "demo", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", STACK),
    event(14, "demo", "UPDATE_COMPLETE", STACK),
]


# Of the document, whose parameters CloudFormation shows whether they are sent or not.
DEFAULTS = {"Workers": "3", "NodeTimeout": "600"}


@dataclass
class FakeStack:
    state: StackState
    script: list[StackEvent]
    shown: int = 0


@dataclass
class FakeCloud:
    """A cloud whose new stacks go through `script`; each query shows one more event."""

    script: list[StackEvent] = field(default_factory=lambda: list(READY))
    roster: Roster | None = field(default_factory=roster)
    left: list[list[str]] = field(default_factory=list)
    name: str = "local"
    admin_user: str = ""
    region: str = "us-east-1"
    poll_interval_s: float = 0.0
    stacks: dict[str, FakeStack] = field(default_factory=dict)
    refuse_create: CloudError | None = None
    networks: str = ""
    logs: dict[str, str] = field(default_factory=lambda: {"10.0.0.5": "line 1\nfalse: exit 1"})
    deleted_groups: list[str] = field(default_factory=list)
    running_now: Running | None = None
    activities_now: dict[str, list[ScalingActivity]] = field(default_factory=dict)
    use_now: Use = field(default_factory=lambda: Use(1.0, 1.0, 1, 1, 0.0))
    roster_after_start: Roster | None = None
    ends: list[float] = field(default_factory=list)
    kept_until: list[float] = field(default_factory=list)
    reviews_forgotten: list[str] = field(default_factory=list)
    prices_now: Prices = field(default_factory=Prices)
    deleted_roles: list[str] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    heads_now: Heads = field(default_factory=Heads)
    progress: dict[str, str] = field(default_factory=dict)
    deleted_file_systems: list[str] = field(default_factory=list)
    stopped: int = 0
    made: int = 0
    sent: list[str] = field(default_factory=list)  # templates
    guard_duty: list[list[str]] = field(default_factory=list)  # what is left of it, at one query after another
    others: list[str] = field(default_factory=list)
    sharers_now: list[str] = field(default_factory=list)
    changes: list[StackChange] = field(default_factory=list)
    update_script: list[StackEvent] = field(default_factory=lambda: list(UPDATED))
    reviewed: list[tuple[dict[str, str], list[str]]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    outdated_now: list[str] = field(default_factory=list)
    objects: dict[str, str] = field(default_factory=dict)  # those that are there
    uploads: dict[str, str] = field(default_factory=dict)  # all that were

    def facts(self, spec, ssh_public_key):
        return Facts(spec.cloud, spec.region, ("us-east-1a",), 2, ssh_public_key=ssh_public_key)

    def limit_attempts(self, most):
        pass

    def image(self, parameter):
        return None

    def require_private_bucket(self, bucket):
        return PrivateBucket("123456789012")

    def put_object(self, url, text, bucket=None):
        self.objects[url] = self.uploads[url] = text

    def delete_object(self, url, owner=""):
        self.objects.pop(url, None)

    def create_stack(self, name, template, parameters, tags=None):
        if self.refuse_create:
            raise self.refuse_create
        self.sent.append(template)
        return self.put(name, "CREATE_IN_PROGRESS", self.script, parameters=dict(parameters))

    def put(self, name, status, script=(), parameters=None, ours=True):
        """Add a stack; return its id."""
        self.made += 1
        stack_id = f"arn:stack/{name}/{self.made}"
        outputs = {"RosterTable": "table", "HeadAddress": "54.0.0.1"}
        outputs |= {"AgentVersion": agent_version()} if ours else {}
        tags = {CLUSTER_TAG: name} if ours else {}
        given = {**DEFAULTS, **(parameters or {})}
        state = StackState(name, stack_id, status, "", 100.0, outputs, given, tags)
        self.stacks[stack_id] = FakeStack(state, list(script))
        return stack_id

    def past(self, *history):
        """Add a stack that has gone through these events, one list of them after another."""
        script = [entry for events in history for entry in events]
        status = next(entry.status for entry in reversed(script) if entry.resource_type == STACK)
        self.stacks[self.put("demo", status, script)].shown = len(script)

    def _find(self, name_or_id):
        if name_or_id in self.stacks:
            return self.stacks[name_or_id]
        alive = [s for s in self.stacks.values() if s.state.name == name_or_id and s.state.status != "DELETE_COMPLETE"]
        return alive[-1] if alive else None

    def review_changes(self, stack, template, parameters, kept, tags=None):
        self.sent.append(template)
        self.reviewed.append((dict(parameters), list(kept)))
        return ChangeSet("changes", tuple(self.changes)) if self.changes else None

    def execute_changes(self, change_set_id):
        (stack,) = [one for one in self.stacks.values() if one.state.ready]
        stack.state = replace(stack.state, status="UPDATE_IN_PROGRESS")
        stack.script = [*stack.script[: stack.shown], *self.update_script]

    def forget_changes(self, change_set_id):
        self.forgotten.append(change_set_id)

    def outdated(self, cluster):
        return self.outdated_now

    def describe_stack(self, name_or_id):
        stack = self._find(name_or_id)
        if stack is None:
            return None
        if stack.state.in_progress and stack.shown < len(stack.script):
            stack.shown += 1
            latest = stack.script[stack.shown - 1]
            if latest.resource_type == STACK:
                stack.state = replace(stack.state, status=latest.status)
        return stack.state

    def events(self, stack_id, after):
        stack = self.stacks[stack_id]
        shown = [
            replace(entry, physical_id=stack_id) if entry.resource_type == STACK else entry
            for entry in stack.script[: stack.shown]
        ]
        known = [number for number, entry in enumerate(shown, 1) if entry.event_id == after]
        return shown[known[0] if known else 0 :]

    def resources(self, stack_id):
        made = {e.logical_id: e for e in self.stacks[stack_id].script if e.resource_type != STACK}
        return [Resource(e.logical_id, e.physical_id, e.resource_type) for e in made.values()]

    def drift(self, resources):
        return []

    def delete_stack(self, stack_id):
        stack = self.stacks[stack_id]
        stack.state = replace(stack.state, status="DELETE_IN_PROGRESS")
        number = len(stack.script) + 1
        gone = [event(number, "Vpc", "DELETE_COMPLETE"), event(number + 1, stack.state.name, "DELETE_COMPLETE", STACK)]
        stack.script = [*stack.script[: stack.shown], *gone]

    def leftovers(self, cluster, resources):
        return self.left.pop(0) if self.left else []

    def item(self, table, key):
        known = {"authority": {"public_key": AUTHORITY}}
        if self.roster is None:
            return {**known, "progress": self.progress}.get(key)
        proven = {"number": str(self.roster.generation), "proven": str(len(self.roster.nodes))}
        return {**known, "roster": {"roster": self.roster.to_json()}, "generation": proven}.get(key)

    def running(self, cluster):
        return self.running_now

    def use(self, cluster, file_system, now_s):
        return self.use_now

    def activities(self, group):
        return self.activities_now.get(group.rpartition("-")[2], [])

    def end_at(self, cluster, at_s):
        self.ends.append(at_s)

    def forget_reviews(self, stack_id):
        self.reviews_forgotten.append(stack_id)

    def prices(self, types, spot_in=""):
        return self.prices_now

    def keep_until(self, cluster, at_s):
        self.kept_until.append(at_s)

    def start_nodes(self, cluster, workers):
        self.started.append(workers)
        self.roster = self.roster_after_start

    def heads(self, group):
        return self.heads_now

    def boot_logs(self, log_group):
        return self.logs

    def delete_file_system(self, file_system):
        self.deleted_file_systems.append(file_system)

    def file_system_place(self, file_system, is_lustre=False):
        return "EFS in us-east-1", f"aws efs delete-file-system {file_system}"

    def remove_policies(self, role):
        return ()

    def delete_guard_duty(self, vpc):
        return self.guard_duty.pop(0) if self.guard_duty else []

    def foreign(self, cluster, vpc):
        return self.others

    def sharers(self, cluster, resources):
        return self.sharers_now

    def delete_role(self, role):
        self.deleted_roles.append(role)

    def endpoints(self, _vpc, _subnets=()):
        return []

    def delete_log_group(self, log_group):
        self.deleted_groups.append(log_group)

    def ssh_route(self, by_session=False):
        return SshRoute(("ProxyCommand dial %h %p",))

    def open_networks(self):
        return self.networks

    def accounts_separated(self):
        return True

    def stop_if_idle(self):
        self.stopped += 1


MISSING = Missing("deeplearning-worker3", "InsufficientInstanceCapacity")
