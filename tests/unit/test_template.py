"""The CloudFormation document: its contents, its limits, and that it is reproducible."""

import base64
import hashlib
import json
import lzma
import random
import re
from dataclasses import replace
from typing import Any

import pytest
from clusters import FACTS, plan
from plans import PLANS, WORST, default_document, resources

from phalanx import __version__
from phalanx.node.settings import ON_AWS, Patience
from phalanx.spec import spec_checks as checks
from phalanx.template import LIMIT_BYTES, fleet, request, synthesize, userdata


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return default_document()


def test_s3_and_dynamodb_are_reached_without_the_nat_gateway(document):
    tables = [{"Ref": "PublicRouteTable"}, {"Ref": "PrivateRouteTable"}]
    assert resources(document, "AWS::EC2::VPCEndpoint") == {
        f"{title}Endpoint": {
            "VpcId": {"Ref": "Vpc"},
            "ServiceName": {"Fn::Sub": f"com.amazonaws.${{AWS::Region}}.{service}"},
            "RouteTableIds": tables,
        }
        for title, service in (("S3", "s3"), ("DynamoDB", "dynamodb"))
    }
    assert {"S3Endpoint", "DynamoDBEndpoint"} <= set(document["Resources"]["WorkersGroup"]["DependsOn"])


def test_the_file_system_has_the_throughput_mode_of_the_spec():
    for wanted, mode in ((None, "bursting"), ("elastic", "elastic")):
        document = json.loads(synthesize(plan(throughput=wanted)))
        properties = document["Resources"]["FileSystem"]["Properties"]
        assert (properties["ThroughputMode"], properties["PerformanceMode"]) == (mode, "generalPurpose")


@pytest.mark.parametrize("name", PLANS)
def test_it_fits_into_a_request_and_leaves_room_for_what_is_to_come(name):
    room = 1000 if PLANS[name] is WORST else 5000
    document, _ = request(PLANS[name])
    assert len(document.encode()) <= LIMIT_BYTES - room


@pytest.mark.parametrize("name", PLANS)
def test_parameters_keep_cloudformations_limits(name):
    document, sent = request(PLANS[name])
    assert len(json.loads(document)["Parameters"]) <= 200
    assert max(len(value.encode()) for value in sent.values()) <= 4096


@pytest.mark.parametrize("name", PLANS)
def test_up_sends_the_document_without_the_agent_which_travels_as_values(name):
    complete = json.loads(synthesize(PLANS[name]))
    document, sent = request(PLANS[name])
    agent = {**userdata.first_parameters(), **userdata.parameters(PLANS[name].spec.boot)}
    assert sent.items() >= agent.items()
    assert {key: complete["Parameters"][key].pop("Default") for key in agent} == agent
    assert json.loads(document) == complete


def test_every_parameter_but_the_agents_is_used(document):
    """cfn-lint, which checks this otherwise, would complain about the agent's, which the head reads."""
    text = json.dumps([document["Resources"], document["Conditions"]])
    used = {name for name in document["Parameters"] if f'"{name}"' in text or f"${{{name}}}" in text}
    assert set(document["Parameters"]) - used == {*userdata.parameters()}  # Stage 1 is used.


def test_the_largest_boot_script_leaves_parameters_free():
    boot = random.Random(1).randbytes(checks.LARGEST_BOOT_BYTES * 7 // 8).hex()
    assert checks.boot(boot)
    agent = userdata.parameters(boot)
    assert 16 < len(agent) < 99 and sorted(agent) == list(agent)


@pytest.mark.parametrize("role", ["head", "worker"])
def test_user_data_fits_with_the_longest_values(role):
    values = {
        "stack_id": "arn:aws:cloudformation:ap-southeast-1:123456789012:stack/" + "n" * 48 + "/" + "0" * 36,
        "domain": "amazonaws.com.cn",
        "queue_url": "https://sqs.ap-southeast-1.amazonaws.com/123456789012/" + "q" * 80,
        "table": "t" * 100,
        "log_group": "l" * 100,
        "job_role": "arn:aws-us-gov:iam::123456789012:role/" + "r" * 64,
        "workers": "999",
        "min": "1000",
        "node_timeout_s": "2700",
        "slots": "1024",
        "efa": "1",
        "block": "cr-0123456789abcdef0",
        "metrics": "1",
        "shared": "/efs/" + "s" * 123,
        "file_system": "fs-" + "0" * 17,
        "ssh_public_key": "k" * 800,
        "wait_handle": "u" * 800,
        "worker_role": "AROA" + "0" * 17,
        "address": "eipalloc-" + "0" * 17,
    }
    config = fleet.config(role, WORST)
    rendered = {key: values.get(key, value) if not isinstance(value, str) else value for key, value in config.items()}
    assert len(userdata.render(rendered)) <= userdata.LIMIT_BYTES


def test_user_data_has_the_agents_times_of_a_rehearsal_and_none_on_aws():
    assert "patience" not in fleet.config("head", plan())
    tenth = Patience(*(wait_s / 10 for wait_s in ON_AWS))
    for role in ("head", "worker"):
        passed = fleet.config(role, plan(replace(FACTS, patience=tenth)))["patience"]
        assert Patience.of(passed) == tenth


def test_the_same_plan_makes_the_same_bytes():
    assert synthesize(plan()) == synthesize(plan())


def test_the_user_who_deploys_it_does_not_change_it():
    assert synthesize(plan(replace(FACTS, ssh_public_key="ssh-ed25519 BBBB you"))) == synthesize(plan())
    assert "AAAAC3 me@here" not in synthesize(plan())


def test_the_version_is_in_the_description_the_metadata_and_an_output(document):
    assert document["Description"].endswith(f"made by phalanx {__version__}")
    assert document["Metadata"]["phalanx"] == {"version": __version__}
    assert document["Outputs"]["AgentVersion"]["Value"].startswith(f"{__version__}+")


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
        *("HeadSecurityGroup", "NodeSecurityGroup", "StorageSecurityGroup", "HeadRole", "WorkerRole", "FunctionRole"),
        *("HeadInstanceProfile", "WorkerInstanceProfile", "FileSystem", "MountTarget", "HeadQueue", "HeadQueuePolicy"),
        *("RosterTable", "FleetTopic", "Function", "FunctionPermission", "HeadAddress", "HeadLaunchTemplate"),
        *("WorkerLaunchTemplate", "HeadGroup", "WorkersGroup", "LogGroup", "Ready1", "ReadyHandle1", "JobRole"),
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
        *("JobRole", "HeadGroup", "WorkersGroup", "FleetTopic", "SecurityGroups", "Login", "AgentVersion"),
    }


def test_parameters_have_the_plans_defaults(document):
    parameters = document["Parameters"].items()
    defaults = {name: parameter["Default"] for name, parameter in parameters if not name.startswith("Agent")}
    assert defaults == {
        "Workers": 3,
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
        "LeaseEnd": "",
        "Idle": 0,
        "Mail": "",
    }


def test_the_data_outlives_the_stack_and_down_decides_about_them(document):
    assert document["Resources"]["FileSystem"]["DeletionPolicy"] == "RetainExceptOnCreate"
    # `down --keep yes` keeps the data also where the file says `keep: no`, and CloudFormation would delete them.
    anyway = json.loads(synthesize(plan(keep="no")))["Resources"]["FileSystem"]
    assert anyway["DeletionPolicy"] == "RetainExceptOnCreate"


def test_a_file_system_that_is_there_takes_the_place_of_a_new_one():
    made = json.loads(synthesize(plan(file_system="fs-0123abcd")))
    assert made["Parameters"]["FileSystemId"]["Default"] == "fs-0123abcd"
    assert made["Resources"]["FileSystem"]["Condition"] == "MakesFileSystem"
    chosen = {"Fn::If": ["MakesFileSystem", {"Ref": "FileSystem"}, {"Ref": "FileSystemId"}]}
    assert made["Resources"]["MountTarget"]["Properties"]["FileSystemId"] == chosen
    assert plan(replace(FACTS, kept_file_system="fs-4567abcd")).parameters()["FileSystemId"] == "fs-4567abcd"


def test_the_console_shows_every_parameter_in_a_group_and_the_agent_last(document):
    groups = document["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    assert sorted(name for group in groups for name in group["Parameters"]) == sorted(document["Parameters"])
    agent = {**userdata.first_parameters(), **userdata.parameters()}
    assert groups[-1] == {"Label": {"default": "Do not change"}, "Parameters": list(agent)}


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
    # CloudFormation requires the whole text to match (by Java's regex, where $ matches before no line end, either).
    assert bool(re.fullmatch(document["Parameters"][parameter]["AllowedPattern"], text)) is fits


def test_a_boot_script_travels_once_and_reaches_both():
    document = json.loads(synthesize(plan(boot="echo hello\n")))
    rest = "".join(document["Parameters"][name]["Default"] for name in userdata.parameters("echo hello\n"))
    _, packed = rest.split(":")
    assert lzma.decompress(base64.b64decode(packed)) == b"echo hello\n"
    digest = hashlib.sha256(rest.encode()).hexdigest()
    for template in resources(document, "AWS::EC2::LaunchTemplate").values():
        assert f"#digest={digest}\n" in template["LaunchTemplateData"]["UserData"]["Fn::Base64"]["Fn::Sub"][0]


def test_workers_start_empty_and_nothing_keeps_them(document):
    group = document["Resources"]["WorkersGroup"]["Properties"]
    assert group["MinSize"] == "0"
    assert not {"DesiredCapacity", "NewInstancesProtectedFromScaleIn"} & set(group)


@pytest.mark.parametrize(("group", "name"), [("HeadGroup", "head"), ("WorkersGroup", "workers")])
def test_instances_carry_the_clusters_tags(document, group, name):
    properties = document["Resources"][group]["Properties"]
    shown = {"Fn::Sub": "${AWS::StackName}-" + name}
    assert properties["AutoScalingGroupName"] == shown
    assert properties["Tags"] == [
        {"Key": "phalanx:cluster", "Value": {"Ref": "AWS::StackName"}, "PropagateAtLaunch": True},
        {"Key": "Name", "Value": shown, "PropagateAtLaunch": True},
    ]


def test_the_root_disk_is_as_the_spec_wants_it():
    document = json.loads(synthesize(plan(disk={"size_gib": 200, "iops": 6000, "throughput_mib_s": 500})))
    for template in resources(document, "AWS::EC2::LaunchTemplate").values():
        (disk,) = template["LaunchTemplateData"]["BlockDeviceMappings"]
        assert disk["Ebs"] == {
            "VolumeSize": 200,
            "VolumeType": "gp3",
            "Iops": 6000,
            "Throughput": 500,
            "Encrypted": True,
            "DeleteOnTermination": True,
        }


def test_tags_are_on_what_the_stacks_own_tags_do_not_reach():
    document = json.loads(synthesize(plan(tags={"team": "vision"})))
    ours = [{"Key": "phalanx:cluster", "Value": {"Ref": "AWS::StackName"}}, {"Key": "team", "Value": "vision"}]
    for template in resources(document, "AWS::EC2::LaunchTemplate").values():
        (own,), (volume,) = template["TagSpecifications"], template["LaunchTemplateData"]["TagSpecifications"]
        assert own["Tags"] == volume["Tags"] == ours
    assert [tag for tag in ours if tag not in document["Resources"]["FileSystem"]["Properties"]["FileSystemTags"]] == []


def test_an_image_by_its_id_is_a_parameter_of_another_type():
    image = json.loads(synthesize(plan(image="ami-0123456789abcdef0")))["Parameters"]["Image"]
    assert (image["Type"], image["Default"]) == ("AWS::EC2::Image::Id", "ami-0123456789abcdef0")


def test_boot_logs_outlive_the_stack_without_blocking_the_next(document):
    group = document["Resources"]["LogGroup"]
    assert group["DeletionPolicy"] == "Retain"
    assert "LogGroupName" not in group["Properties"]
    assert [name for name, r in document["Resources"].items() if r.get("DeletionPolicy") == "Retain"] == ["LogGroup"]


def test_the_agent_is_carried_once():
    for part in {**userdata.first_parameters(), **userdata.parameters()}.values():
        assert synthesize(plan()).count(json.dumps(part)[1:-1]) == 1


def test_workers_know_no_wait_handle():
    assert fleet.config("worker", plan())["wait_handle"] == ""
    assert fleet.config("head", plan())["wait_handle"].data == {"Ref": "ReadyHandle1"}
