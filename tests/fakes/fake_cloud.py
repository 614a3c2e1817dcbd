"""An AWS in memory: stacks go through events that a test defines, one at each query."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from botocore.exceptions import ClientError
from rosters import a_node

from phalanx.aws import stacks
from phalanx.aws.aws import Aws
from phalanx.aws.inventory import remains
from phalanx.aws.model import (
    Heads,
    PrivateBucket,
    Running,
    ScalingActivity,
    StackChange,
    StackEvent,
    StackState,
)
from phalanx.cluster.bring_up import BringUp, Note
from phalanx.errors import CloudError
from phalanx.local import endpoint
from phalanx.node.roster import Missing, Roster
from phalanx.plan.money import Prices, Use
from phalanx.plan.plan import Facts
from phalanx.spec.cloud_names import is_local
from phalanx.spec.own_tags import CLUSTER_TAG
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
class FakeAws(Aws):
    """An AWS whose new stacks go through `script`; each query shows one more event.

    It answers a call with the method of the operation's name, and with nothing where it has none. It is also the
    service that makes the machines, and the site.
    """

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
    guard_duty: list[list[str]] = field(default_factory=list)  # its endpoints, at one query after another
    others: dict[str, str] = field(default_factory=dict)  # network interfaces
    groups: dict[str, str] = field(default_factory=dict)  # security groups
    sharers_now: list[str] = field(default_factory=list)
    changes: list[StackChange] = field(default_factory=list)
    update_script: list[StackEvent] = field(default_factory=lambda: list(UPDATED))
    reviewed: list[tuple[dict[str, str], list[str]]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    outdated_now: list[str] = field(default_factory=list)
    objects: dict[str, str] = field(default_factory=dict)  # those that are there
    uploads: dict[str, str] = field(default_factory=dict)  # all that were

    def __post_init__(self):
        super().__init__(self.region, self.name)
        self.machines = self.site = self

    def call(self, service, operation, **arguments):
        if operation in PROOFS:
            raise gone(operation)
        answer = getattr(self, operation, None)
        return (answer(**arguments) if answer else None) or {}

    def prepare(self, services):
        """Make no clients."""

    def endpoint_url(self):
        return "https://s3"

    def state(self, name_or_id):
        return stacks.describe(self, name_or_id)

    # -- CloudFormation --

    def create_stack(self, StackName, Parameters, **template):
        if self.refuse_create:
            raise self.refuse_create
        self._read(**template)
        return {"StackId": self.put(StackName, "CREATE_IN_PROGRESS", self.script, parameters=given(Parameters))}

    def _read(self, TemplateBody="", TemplateURL="", **_):
        self.sent.append(TemplateBody or self.objects[TemplateURL.replace("https://s3/", "s3://")])

    def get_template(self, **_):
        return {"TemplateBody": self.sent[-1]}

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

    def describe_stacks(self, StackName):
        stack = self._find(StackName)
        if stack is None:
            raise gone("DescribeStacks")
        if stack.state.in_progress and stack.shown < len(stack.script):
            stack.shown += 1
            latest = stack.script[stack.shown - 1]
            if latest.resource_type == STACK:
                stack.state = replace(stack.state, status=latest.status)
        return {"Stacks": [described(stack.state)]}

    def describe_stack_events(self, StackName):
        stack = self.stacks[StackName]
        shown = [
            replace(entry, physical_id=StackName) if entry.resource_type == STACK else entry
            for entry in stack.script[: stack.shown]
        ]
        return {"StackEvents": [noted(entry) for entry in shown[::-1]]}

    def list_stack_resources(self, StackName):
        made = {e.logical_id: e for e in self.stacks[StackName].script if e.resource_type != STACK}
        return {"StackResourceSummaries": [noted(entry) for entry in made.values()]}

    def delete_stack(self, StackName):
        stack = self.stacks[StackName]
        stack.state = replace(stack.state, status="DELETE_IN_PROGRESS")
        number = len(stack.script) + 1
        gone = [event(number, "Vpc", "DELETE_COMPLETE"), event(number + 1, stack.state.name, "DELETE_COMPLETE", STACK)]
        stack.script = [*stack.script[: stack.shown], *gone]

    def create_change_set(self, Parameters, **template):
        self._read(**template)
        kept = [one["ParameterKey"] for one in Parameters if "UsePreviousValue" in one]
        self.reviewed.append((given(Parameters), kept))
        return {"Id": "changes"}

    def describe_change_set(self, ChangeSetName, **_):
        if not self.changes:
            return {"Status": "FAILED", "StatusReason": "The submitted information didn't contain changes."}
        return {"Status": "CREATE_COMPLETE", "Changes": [{"ResourceChange": changed(one)} for one in self.changes]}

    def execute_change_set(self, ChangeSetName):
        (stack,) = [one for one in self.stacks.values() if one.state.ready]
        stack.state = replace(stack.state, status="UPDATE_IN_PROGRESS")
        stack.script = [*stack.script[: stack.shown], *self.update_script]

    def delete_change_set(self, ChangeSetName):
        self.forgotten.append(ChangeSetName)

    def list_change_sets(self, StackName):
        self.reviews_forgotten.append(StackName)

    # -- other services --

    def get_item(self, Key, **_):
        known = {"authority": {"public_key": AUTHORITY}, "progress": self.progress}
        if self.roster:
            proven = {"number": str(self.roster.generation), "proven": str(len(self.roster.nodes))}
            known |= {"roster": {"roster": self.roster.to_json()}, "generation": proven, "progress": {}}
        found = known.get(Key["item"]["S"])
        return {"Item": {name: {"S": value} for name, value in found.items()}} if found else {}

    def describe_log_streams(self, **_):
        return {"logStreams": [{"logStreamName": name} for name in self.logs]}

    def get_log_events(self, logStreamName, **_):
        return {"events": [{"message": self.logs[logStreamName]}]}

    def delete_log_group(self, logGroupName):
        self.deleted_groups.append(logGroupName)

    def describe_file_systems(self, FileSystemId=None, **_):
        there = FileSystemId and FileSystemId not in self.deleted_file_systems
        return {"FileSystems": [{"FileSystemId": FileSystemId}] if there else []}

    def delete_file_system(self, FileSystemId):
        self.deleted_file_systems.append(FileSystemId)

    def delete_role(self, RoleName):
        self.deleted_roles.append(RoleName)

    def put_object(self, Bucket, Key, Body, **_):
        url = f"s3://{Bucket}/{Key}"
        self.objects[url] = self.uploads[url] = Body.decode()

    def delete_object(self, Bucket, Key, **_):
        self.objects.pop(f"s3://{Bucket}/{Key}", None)

    def describe_instances(self, Filters=(), **_):
        """Return what is left: `instance ID (STATE)`."""
        lines = [line.split() for line in (self.left.pop(0) if self.left else [])]
        tags = [{"Key": CLUSTER_TAG, "Value": value} for one in Filters for value in one["Values"]]
        left = [{"InstanceId": name, "State": {"Name": state.strip("()")}, "Tags": tags} for _, name, state in lines]
        return {"Reservations": [{"Instances": left}]}

    def describe_vpc_endpoints(self, **_):
        there = self.guard_duty.pop(0) if self.guard_duty else []
        common = {"ServiceName": "aws.guardduty-data", "State": "deleting"}
        return {"VpcEndpoints": [{"VpcEndpointId": one, **common} for one in there]}

    def describe_network_interfaces(self, **_):
        found = [{"NetworkInterfaceId": one, "Description": text} for one, text in self.others.items()]
        return {"NetworkInterfaces": found}

    def describe_security_groups(self, Filters):
        found = [{"GroupId": one, "GroupName": text} for one, text in self.groups.items()]
        if any(one["Name"] == "tag-key" for one in Filters):
            tags = [[{"Key": CLUSTER_TAG, "Value": name}] for name in self.sharers_now]
            found = [{"GroupId": "sg", "GroupName": "g", "IpPermissions": [], "Tags": one} for one in tags]
        return {"SecurityGroups": found}

    # -- phalanx.aws.model.Machines --

    def running(self, cluster):
        return self.running_now

    def outdated(self, cluster):
        return self.outdated_now

    def use(self, cluster, file_system, now_s):
        return self.use_now

    def activities(self, group):
        return self.activities_now.get(group.rpartition("-")[2], [])

    def end_at(self, cluster, at_s):
        self.ends.append(at_s)

    def keep_until(self, cluster, at_s):
        self.kept_until.append(at_s)

    def start_nodes(self, cluster, nodes):
        self.started.append(nodes)
        self.roster = self.roster_after_start

    def heads(self, group):
        return self.heads_now

    def leftovers(self, cluster, resources):
        return []

    # -- phalanx.aws.model.Site --

    def facts(self, spec, ssh_public_key):
        return Facts(spec.cloud, spec.region, ("us-east-1a",), 2, ssh_public_key=ssh_public_key)

    def image(self, parameter):
        return None

    def prices(self, types, spot_in=""):
        return self.prices_now

    def require_private_bucket(self, bucket):
        return PrivateBucket("123456789012")

    def ssh_route(self, by_session=False):
        return ("ProxyCommand dial %h %p",)

    def file_system_place(self, file_system, is_lustre=False):
        return "EFS in us-east-1", f"aws efs delete-file-system {file_system}"

    def open_networks(self):
        return self.networks

    def accounts_separated(self):
        return True

    def is_off(self):
        return is_local(self.name) and endpoint.find() is None

    def stop_if_idle(self):
        self.stopped += 1


PROOFS = frozenset(operation for _, operation, _ in remains.BY_ID.values())
"""They say of a single resource whether it is there."""


def gone(operation):
    """Return the error of a call about what does not exist."""
    refused = ClientError({"Error": {"Code": "ValidationError", "Message": "it does not exist"}}, operation)
    error = CloudError("it does not exist")
    error.__cause__ = refused
    return error


def given(parameters):
    return {one["ParameterKey"]: one["ParameterValue"] for one in parameters if "ParameterValue" in one}


def moment(at_s):
    return datetime.fromtimestamp(at_s, timezone.utc)


def described(state):
    """Return a stack as DescribeStacks does."""
    parameters = [
        {"ParameterKey": key, "ParameterValue": value}
        | ({"ResolvedValue": state.resolved[key]} if key in state.resolved else {})
        for key, value in state.parameters.items()
    ]
    return {
        "StackName": state.name,
        "StackId": state.stack_id,
        "StackStatus": state.status,
        "StackStatusReason": state.reason,
        "CreationTime": moment(state.created_s),
        "LastUpdatedTime": moment(state.updated_s) if state.updated_s else None,
        "Outputs": [{"OutputKey": key, "OutputValue": value} for key, value in state.outputs.items()],
        "Parameters": parameters,
        "Tags": [{"Key": key, "Value": value} for key, value in state.tags.items()],
    }


def noted(entry):
    """Return an event, or the resource that it is about, as CloudFormation does."""
    return {
        "EventId": entry.event_id,
        "Timestamp": moment(entry.time_s),
        "LogicalResourceId": entry.logical_id,
        "PhysicalResourceId": entry.physical_id,
        "ResourceType": entry.resource_type,
        "ResourceStatus": entry.status,
        "ResourceStatusReason": entry.reason,
    }


def changed(one):
    """Return a change as DescribeChangeSet does."""
    return {
        "Action": one.action,
        "LogicalResourceId": one.logical_id,
        "ResourceType": one.resource_type,
        "Replacement": one.replacement,
        "Scope": list(one.scope),
    }


MISSING = Missing("deeplearning-worker3", "InsufficientInstanceCapacity")
