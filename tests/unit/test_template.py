"""The CloudFormation document: what it holds, its limits, least privilege, and that it is the same every time."""

import base64
import graphlib
import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from clusters import FACTS, plan
from plans import PLANS, WORST

from phalanx.template import LIMIT_BYTES, fleet, synthesize, userdata


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(synthesize(plan()))


def resources(document: dict[str, Any], kind: str) -> dict[str, Any]:
    return {name: r.get("Properties", {}) for name, r in document["Resources"].items() if r["Type"] == kind}


@pytest.mark.parametrize("name", PLANS)
def test_it_fits_into_a_request(name):
    assert len(synthesize(PLANS[name]).encode()) <= LIMIT_BYTES


@pytest.mark.parametrize("role", ["head", "worker"])
def test_user_data_fits_with_the_longest_values(role):
    values = {
        "stack_id": "arn:aws:cloudformation:ap-southeast-1:123456789012:stack/" + "n" * 63 + "/" + "0" * 36,
        "queue_url": "https://sqs.ap-southeast-1.amazonaws.com/123456789012/" + "q" * 80,
        "table": "t" * 100,
        "log_group": "l" * 100,
        "nodes": "1000",
        "min": "1000",
        "node_timeout_s": "2700",
        "slots": "1024",
        "shared": "/" + "s" * 127,
        "file_system": "fs-" + "0" * 17,
        "ssh_public_key": "k" * 800,
        "wait_handle": "u" * 800,
    }
    values["boot"] = fleet.boot_mapping(WORST)["boot"]["gzip64"]
    assert len(values["boot"]) > 2500
    config = fleet.config(role, WORST)
    rendered = {key: values.get(key, value) if not isinstance(value, str) else value for key, value in config.items()}
    assert userdata.rendered_size(rendered) <= userdata.LIMIT_BYTES


def test_the_same_plan_makes_the_same_bytes():
    assert synthesize(plan()) == synthesize(plan())


def test_who_deploys_it_does_not_change_it():
    assert synthesize(plan(replace(FACTS, ssh_public_key="ssh-ed25519 BBBB you"))) == synthesize(plan())
    assert "AAAAC3 me@here" not in synthesize(plan())


def test_every_deployment_has_a_wait_condition_of_its_own():
    second = json.loads(synthesize(plan(replace(FACTS, deployment=2))))["Resources"]
    assert {"Ready2", "ReadyHandle2"} <= set(second)
    assert not {"Ready1", "ReadyHandle1"} & set(second)


def test_resources(document):
    assert set(document["Resources"]) >= {
        *(
            "Vpc",
            "InternetGateway",
            "GatewayAttachment",
            "PublicSubnet",
            "PrivateSubnet",
            "PublicRouteTable",
            "PublicRoute",
        ),
        *("PublicSubnetRoutes", "NatAddress", "NatGateway", "PrivateRouteTable", "PrivateRoute", "PrivateSubnetRoutes"),
        *("HeadSecurityGroup", "WorkerSecurityGroup", "StorageSecurityGroup", "HeadRole", "WorkerRole", "FunctionRole"),
        *("HeadInstanceProfile", "WorkerInstanceProfile", "FileSystem", "MountTarget", "HeadQueue", "HeadQueuePolicy"),
        *("RosterTable", "FleetTopic", "Function", "FunctionPermission", "HeadAddress", "HeadLaunchTemplate"),
        *("WorkerLaunchTemplate", "HeadGroup", "WorkersGroup", "LogGroup", "Ready1", "ReadyHandle1"),
    }


def test_outputs(document):
    assert set(document["Outputs"]) == {
        *(
            "HeadAddress",
            "ClusterMasterPublicDNS",
            "Outcome",
            "RosterTable",
            "HeadQueue",
            "SharedFileSystem",
            "LogGroup",
        ),
        *("HeadGroup", "WorkersGroup", "AgentVersion"),
    }


def test_parameters_have_the_plans_defaults(document):
    defaults = {name: parameter["Default"] for name, parameter in document["Parameters"].items()}
    assert defaults == {
        "Nodes": 4,
        "MinNodes": 2,
        "InstanceType": "c5.large",
        "SshLocation": "127.0.0.1/32",
        "KeyPair": "",
        "Image": plan().image_parameter,
        "RootDevice": "/dev/sda1",
        "SshPublicKey": "",
        "Zone": "us-east-1a",
        "Slots": 0,
        "SharedDirectory": "/efs",
        "FileSystemId": "",
        "NodeTimeout": 600,
    }


def test_the_data_outlives_the_stack_unless_it_was_said_otherwise(document):
    assert document["Resources"]["FileSystem"]["DeletionPolicy"] == "RetainExceptOnCreate"
    gone = json.loads(synthesize(plan(keep="no")))["Resources"]["FileSystem"]
    assert gone["DeletionPolicy"] == "Delete"


def test_a_file_system_that_is_there_takes_the_place_of_a_new_one():
    made = json.loads(synthesize(plan(file_system="fs-0123abcd")))
    assert made["Parameters"]["FileSystemId"]["Default"] == "fs-0123abcd"
    assert made["Resources"]["FileSystem"]["Condition"] == "MakesFileSystem"
    chosen = {"Fn::If": ["MakesFileSystem", {"Ref": "FileSystem"}, {"Ref": "FileSystemId"}]}
    assert made["Resources"]["MountTarget"]["Properties"]["FileSystemId"] == chosen
    assert plan(replace(FACTS, kept_file_system="fs-4567abcd")).parameters()["FileSystemId"] == "fs-4567abcd"


def test_the_console_shows_every_parameter_in_a_group(document):
    shown = document["Metadata"]["AWS::CloudFormation::Interface"]
    assert sorted(name for group in shown["ParameterGroups"] for name in group["Parameters"]) == sorted(
        document["Parameters"]
    )
    assert set(shown["ParameterLabels"]) == set(document["Parameters"])


@pytest.mark.parametrize("name", PLANS)
def test_defaults_keep_their_own_rules(name):
    for parameter in json.loads(synthesize(PLANS[name]))["Parameters"].values():
        text = str(parameter["Default"])
        assert re.search(parameter.get("AllowedPattern", ""), text)
        assert text in map(str, parameter.get("AllowedValues", [text]))
        assert parameter.get("MinValue", 0) <= float(parameter["Default"] if parameter["Type"] == "Number" else 0)


@pytest.mark.parametrize(
    ("parameter", "text", "fits"),
    [
        ("SshPublicKey", "ssh-ed25519 AAAAC3Nza me@here.example", True),
        ("SshPublicKey", "", True),
        ("SshPublicKey", 'ssh-ed25519 AAAA "; rm -rf /', False),
        ("SshPublicKey", "ssh-ed25519 AAAA me\n#role=head", False),
        ("SharedDirectory", "/mnt/data-1", True),
        ("SharedDirectory", "/", False),
        ("SharedDirectory", "/efs\n", False),
        ("SharedDirectory", "/e fs", False),
        ("SshLocation", "0.0.0.0/0", True),
        ("SshLocation", "anywhere", False),
    ],
)
def test_what_the_console_takes(document, parameter, text, fits):
    # CloudFormation wants the whole text to match (it is Java's regex, where $ is no line end either).
    assert bool(re.fullmatch(document["Parameters"][parameter]["AllowedPattern"], text)) is fits


def test_references_have_no_circle_and_no_loose_end(document):
    names = document["Resources"]
    graph = {name: set(references(resource)) for name, resource in names.items()}
    known = {*names, *document["Parameters"], *document["Conditions"]}
    assert {name for found in graph.values() for name in found} <= known
    graphlib.TopologicalSorter(graph).prepare()


def references(part: Any) -> Iterator[str]:
    """Logical ids that a part of the document names."""
    if isinstance(part, list):
        for item in part:
            yield from references(item)
    elif isinstance(part, dict):
        yield from _named_by(part)
        for key, value in part.items():
            if key != "Fn::FindInMap":
                yield from references(value)


def _named_by(part: dict[str, Any]) -> Iterator[str]:
    if isinstance(part.get("Ref"), str) and not part["Ref"].startswith("AWS::"):
        yield part["Ref"]
    if "Fn::GetAtt" in part:
        yield part["Fn::GetAtt"][0]
    if "DependsOn" in part:
        yield from [part["DependsOn"]] if isinstance(part["DependsOn"], str) else part["DependsOn"]
    if "Fn::Sub" in part:
        text, own = part["Fn::Sub"] if isinstance(part["Fn::Sub"], list) else (part["Fn::Sub"], {})
        found = (name.split(".")[0] for name in re.findall(r"\$\{([^!:}]+)\}", text))
        yield from (name for name in found if name not in own)


def closure(document: dict[str, Any], start: str) -> set[str]:
    """Everything that must stand before `start` is made."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = set(references(document["Resources"][waiting.pop()])) & set(document["Resources"]) - found
        found |= new
        waiting += new
    return found


def test_the_heads_group_comes_last(document):
    missing = set(document["Resources"]) - closure(document, "HeadGroup") - {"HeadGroup", "Ready1"}
    assert missing == set()


def test_ready_is_beside_the_heads_group(document):
    """So a head that can't be launched fails the stack at once; and its clock starts when the head can boot."""
    before = closure(document, "Ready1")
    assert "HeadGroup" not in before
    assert {"WorkersGroup", "Function", "FunctionPermission", "MountTarget", "PublicRoute", "HeadQueuePolicy"} <= before
    assert document["Resources"]["Ready1"]["Properties"] | {"Handle": None} == {
        "Handle": None,
        "Timeout": "3300",
        "Count": 1,
    }


def test_workers_go_before_what_their_shutdown_needs(document):
    """A deletion runs the other way round: an NFS mount that does not answer would hold every worker up."""
    needed = {"MountTarget", "StorageFromWorkers", "PrivateRoute", "PrivateSubnetRoutes", "WorkersFromHead"}
    assert needed <= closure(document, "WorkersGroup")


def test_the_function_is_started_by_launches_of_the_head_alone(document):
    assert document["Resources"]["FunctionSubscription"]["Properties"]["FilterPolicy"] == {
        "AutoScalingGroupName": [{"Fn::Sub": "${AWS::StackName}-head"}],
        "Event": ["autoscaling:EC2_INSTANCE_LAUNCH", "autoscaling:EC2_INSTANCE_LAUNCH_ERROR"],
    }


def test_public_addresses_go_before_their_gateway(document):
    assert "GatewayAttachment" in closure(document, "HeadAddress")
    assert "GatewayAttachment" in closure(document, "NatGateway")


def statements(document: dict[str, Any], role: str) -> list[dict[str, Any]]:
    (policy,) = document["Resources"][role]["Properties"]["Policies"]
    return policy["PolicyDocument"]["Statement"]


def actions(document: dict[str, Any], role: str) -> set[str]:
    return {action for statement in statements(document, role) for action in statement["Action"]}


ROLES = ("HeadRole", "WorkerRole", "FunctionRole")
# Actions that know no resources (docs/aws-behaviour.md 6).
WITHOUT_RESOURCES = {
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeScalingActivities",
    "ec2:DescribeInstances",
}


@pytest.mark.parametrize("role", ROLES)
def test_no_role_may_do_everything(document, role):
    for statement in statements(document, role):
        assert not [action for action in statement["Action"] if "*" in action]
        if statement["Resource"] == "*":
            assert set(statement["Action"]) <= WITHOUT_RESOURCES


def test_a_worker_can_only_say_hello_read_log_and_mount_and_end_a_lost_head(document):
    (ends,) = [s for s in statements(document, "WorkerRole") if "autoscaling" in s["Action"][0]]
    assert ends["Resource"]["Fn::Sub"].endswith("autoScalingGroupName/${AWS::StackName}-head")
    assert actions(document, "WorkerRole") == {
        "autoscaling:TerminateInstanceInAutoScalingGroup",
        *("sqs:SendMessage", "dynamodb:GetItem", "logs:CreateLogStream", "logs:PutLogEvents"),
        *("elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite", "elasticfilesystem:ClientRootAccess"),
    }


def test_only_the_head_writes_the_roster_and_reads_the_queue(document):
    assert {"dynamodb:PutItem", "sqs:ReceiveMessage"} <= actions(document, "HeadRole")
    for role in ("WorkerRole", "FunctionRole"):
        assert not {"dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem", "sqs:ReceiveMessage"} & actions(
            document, role
        )


def test_the_head_changes_the_workers_group_alone(document):
    (changes,) = [s for s in statements(document, "HeadRole") if "autoscaling:UpdateAutoScalingGroup" in s["Action"]]
    assert changes["Resource"]["Fn::Sub"].endswith("autoScalingGroupName/${AWS::StackName}-workers")


def test_the_head_reads_its_own_stacks_template_alone(document):
    (reads,) = [s for s in statements(document, "HeadRole") if "cloudformation:GetTemplate" in s["Action"]]
    assert reads["Resource"] == {"Ref": "AWS::StackId"}


def test_a_boot_script_travels_once_and_reaches_both():
    made = plan(boot="echo hello\n")
    document = json.loads(synthesize(made))
    packed = document["Mappings"]["Agent"]["boot"]["gzip64"]
    assert gzip.decompress(base64.b64decode(packed)) == b"echo hello\n"
    assert synthesize(made).count(packed) == 1
    for template in resources(document, "AWS::EC2::LaunchTemplate").values():
        assert '["Agent", "boot", "gzip64"]' in json.dumps(template["LaunchTemplateData"]["UserData"])


def test_nobody_may_make_log_groups(document):
    """A late writer would bring the deleted one back."""
    assert not [role for role in ROLES if "logs:CreateLogGroup" in actions(document, role)]


def test_the_function_touches_instances_of_this_cluster_alone(document):
    (instances,) = [s for s in statements(document, "FunctionRole") if "instance/*" in str(s["Resource"])]
    assert instances["Condition"] == {"StringEquals": {"ec2:ResourceTag/phalanx:cluster": {"Ref": "AWS::StackName"}}}


def test_roles_have_no_names_of_their_own(document):
    """So CAPABILITY_IAM is enough."""
    for kind in ("AWS::IAM::Role", "AWS::IAM::InstanceProfile"):
        assert not [r for r in resources(document, kind).values() if {"RoleName", "InstanceProfileName"} & set(r)]


def test_the_queue_takes_notifications_of_its_topic_alone(document):
    (statement,) = document["Resources"]["HeadQueuePolicy"]["Properties"]["PolicyDocument"]["Statement"]
    assert statement["Condition"] == {"ArnEquals": {"aws:SourceArn": {"Ref": "FleetTopic"}}}
    assert document["Resources"]["HeadQueue"]["Properties"]["SqsManagedSseEnabled"] is True


def test_ssh_from_outside_reaches_the_head_alone(document):
    groups = resources(document, "AWS::EC2::SecurityGroup")
    (ssh,) = groups["HeadSecurityGroup"]["SecurityGroupIngress"]
    assert (ssh["FromPort"], ssh["ToPort"], ssh["CidrIp"]) == (22, 22, {"Ref": "SshLocation"})
    assert [name for name, group in groups.items() if "SecurityGroupIngress" in group] == ["HeadSecurityGroup"]
    assert document["Parameters"]["SshLocation"]["Default"] != "0.0.0.0/0"


def test_everything_else_comes_from_named_groups(document):
    for rule in resources(document, "AWS::EC2::SecurityGroupIngress").values():
        assert "CidrIp" not in rule
        assert rule["SourceSecurityGroupId"]


def test_storage_takes_nfs_alone_and_reaches_nothing(document):
    to_storage = [
        rule
        for rule in resources(document, "AWS::EC2::SecurityGroupIngress").values()
        if rule["GroupId"] == {"Fn::GetAtt": ["StorageSecurityGroup", "GroupId"]}
    ]
    assert {(rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) for rule in to_storage} == {("tcp", 2049, 2049)}
    assert len(to_storage) == 2
    (out,) = document["Resources"]["StorageSecurityGroup"]["Properties"]["SecurityGroupEgress"]
    assert out["CidrIp"] == "127.0.0.1/32"


def test_disks_and_shared_files_are_encrypted(document):
    assert document["Resources"]["FileSystem"]["Properties"]["Encrypted"] is True
    for template in resources(document, "AWS::EC2::LaunchTemplate").values():
        (volume,) = template["LaunchTemplateData"]["BlockDeviceMappings"]
        assert volume["Ebs"] == {"Encrypted": True, "VolumeType": "gp3", "DeleteOnTermination": True}
        assert template["LaunchTemplateData"]["MetadataOptions"]["HttpTokens"] == "required"


def test_workers_start_empty_and_nothing_keeps_them(document):
    group = document["Resources"]["WorkersGroup"]["Properties"]
    assert group["MinSize"] == "0"
    assert not {"DesiredCapacity", "NewInstancesProtectedFromScaleIn"} & set(group)


@pytest.mark.parametrize(
    ("group", "role", "name"), [("HeadGroup", "head", "head"), ("WorkersGroup", "worker", "workers")]
)
def test_instances_carry_the_clusters_tags(document, group, role, name):
    properties = document["Resources"][group]["Properties"]
    shown = {"Fn::Sub": "${AWS::StackName}-" + name}
    assert properties["AutoScalingGroupName"] == shown
    assert properties["Tags"] == [
        {"Key": "phalanx:cluster", "Value": {"Ref": "AWS::StackName"}, "PropagateAtLaunch": True},
        {"Key": "phalanx:role", "Value": role, "PropagateAtLaunch": True},
        {"Key": "Name", "Value": shown, "PropagateAtLaunch": True},
    ]


def test_boot_logs_outlive_the_stack_without_blocking_the_next(document):
    group = document["Resources"]["LogGroup"]
    assert group["DeletionPolicy"] == "Retain"
    assert "LogGroupName" not in group["Properties"]
    assert [name for name, r in document["Resources"].items() if r.get("DeletionPolicy") == "Retain"] == ["LogGroup"]


def test_the_agent_is_carried_once():
    assert synthesize(plan()).count(json.dumps(userdata.agent_payload())[1:-1]) == 1


def test_workers_know_no_wait_handle():
    assert fleet.config("worker", plan())["wait_handle"] == ""
    assert fleet.config("head", plan())["wait_handle"].data == {"Ref": "ReadyHandle1"}
