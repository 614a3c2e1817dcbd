"""Access: least privilege of the roles, and the security groups."""

import json
from dataclasses import replace
from typing import Any

import pytest
from aws_references import authorization
from clusters import FACTS, plan
from error_codes import raises_code
from plans import EMR, PLANS, default_document, resources

from localcloud.iam.policy import like
from phalanx.plan.plan_text import explain
from phalanx.template import synthesize

ROLES = ("HeadRole", "WorkerRole", "FunctionRole")
# Actions without resource-level permissions (docs/aws-behaviour.md 6).
WITHOUT_RESOURCES = {
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeScalingActivities",
    "autoscaling:DescribeScheduledActions",
    "ec2:DescribeInstances",
}
# On all resources although the reference names some.
ON_ALL = {
    "cloudwatch:putmetricdata": "a data set is not a metric; the namespace is what can be bound",
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return default_document()


def statements(document: dict[str, Any], role: str) -> list[dict[str, Any]]:
    (own,) = document["Resources"][role]["Properties"]["Policies"]
    shared = [p for p in resources(document, "AWS::IAM::Policy").values() if {"Ref": role} in p["Roles"]]
    return [statement for policy in (own, *shared) for statement in policy["PolicyDocument"]["Statement"]]


def actions(document: dict[str, Any], role: str) -> set[str]:
    return {action for statement in statements(document, role) for action in statement["Action"]}


@pytest.mark.parametrize("role", ROLES)
def test_no_role_may_do_everything(document, role):
    for statement in statements(document, role):
        assert not [action for action in statement["Action"] if "*" in action]
        if statement["Resource"] == "*":
            assert set(statement["Action"]) <= WITHOUT_RESOURCES


def judged_without_resources() -> set[str]:
    """Return the actions on all resources in the roles of all documents."""
    found = set()
    for plan_ in (*PLANS.values(), EMR):
        document = json.loads(synthesize(plan_))
        for kind in ("AWS::IAM::Role", "AWS::IAM::Policy"):
            for properties in resources(document, kind).values():
                policies = [one["PolicyDocument"] for one in properties.get("Policies", ())]
                policies += [properties["PolicyDocument"]] if "PolicyDocument" in properties else []
                given = [one for policy in policies for one in policy["Statement"]]
                found |= {action for one in given if one["Resource"] == "*" for action in one["Action"]}
    return found


def test_no_role_may_act_on_all_resources_where_iam_knows_single_ones():
    """By AWS's authorization reference, as cfn-lint ships it."""
    known = authorization()
    single = [
        action
        for service, _, name in (one.partition(":") for one in sorted(judged_without_resources()))
        if name != "Describe*"  # of the role that deletes the stack: it only reads
        for action, facts in known[service]["Actions"].items()
        if like(name.lower(), action) and facts.get("Resources") and f"{service}:{action}" not in ON_ALL
    ]
    assert single == []


def test_a_worker_can_only_say_hello_read_log_and_end_a_lost_head(document):
    (ends,) = [s for s in statements(document, "WorkerRole") if "autoscaling" in s["Action"][0]]
    assert ends["Resource"]["Fn::Sub"].endswith("autoScalingGroupName/${AWS::StackName}-head")
    assert actions(document, "WorkerRole") == {
        "autoscaling:TerminateInstanceInAutoScalingGroup",
        *("sqs:SendMessage", "dynamodb:BatchGetItem", "dynamodb:GetItem", "logs:CreateLogStream", "logs:PutLogEvents"),
    }


def test_only_the_head_writes_the_roster_and_reads_the_queue(document):
    assert {"dynamodb:PutItem", "sqs:ReceiveMessage"} <= actions(document, "HeadRole")
    for role in ("WorkerRole", "FunctionRole"):
        assert not {"dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem", "sqs:ReceiveMessage"} & actions(
            document, role
        )


def test_the_head_changes_the_sizes_of_its_clusters_groups_alone(document):
    """Its own too, so that an unused cluster stops; within bounds that it may not change."""
    (changes,) = [s for s in statements(document, "HeadRole") if "autoscaling:SetDesiredCapacity" in s["Action"]]
    groups = [one["Fn::Sub"].rpartition("/")[2] for one in changes["Resource"]]
    assert groups == ["${AWS::StackName}-workers", "${AWS::StackName}-head"]
    assert "autoscaling:UpdateAutoScalingGroup" not in actions(document, "HeadRole"), "nor the most that it may have"


def test_the_head_describes_its_own_stack_alone(document):
    (reads,) = [s for s in statements(document, "HeadRole") if "cloudformation" in str(s["Action"])]
    assert reads["Action"] == ["cloudformation:DescribeStacks"]
    assert reads["Resource"] == {"Ref": "AWS::StackId"}


def test_nobody_may_make_log_groups(document):
    """A late writer would create the deleted one again."""
    assert not [role for role in ROLES if "logs:CreateLogGroup" in actions(document, role)]


def test_the_head_takes_its_address_itself_for_instances_of_this_cluster_alone(document):
    takes = [s for s in statements(document, "HeadRole") if "ec2:AssociateAddress" in s["Action"]]
    address, instance, interface = takes
    assert address["Resource"]["Fn::Sub"].endswith("elastic-ip/${HeadAddress.AllocationId}")
    assert instance["Condition"] == {"StringEquals": {"ec2:ResourceTag/phalanx:cluster": {"Ref": "AWS::StackName"}}}
    assert interface["Condition"]["ArnLike"]["ec2:Subnet"]["Fn::Sub"].endswith("subnet/${PublicSubnet}")
    assert "ec2:AssociateAddress" not in actions(document, "FunctionRole") | actions(document, "WorkerRole")


def test_the_head_has_a_way_out_from_its_launch(document):
    """Without one it could not take its address: no other machine does that."""
    subnets = {name: p.get("MapPublicIpOnLaunch") for name, p in resources(document, "AWS::EC2::Subnet").items()}
    assert subnets == {"PublicSubnet": True, "PrivateSubnet": None}
    for template in resources(document, "AWS::EC2::LaunchTemplate").values():
        assert "NetworkInterfaces" not in template["LaunchTemplateData"], "with several, EC2 refuses a public address"


def test_the_function_is_started_by_failed_launches_of_the_head_alone(document):
    assert document["Resources"]["FunctionSubscription"]["Properties"]["FilterPolicy"] == {
        "AutoScalingGroupName": [{"Fn::Sub": "${AWS::StackName}-head"}],
        "Event": ["autoscaling:EC2_INSTANCE_LAUNCH_ERROR"],
    }


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
    launched = resources(document, "AWS::EC2::LaunchTemplate")
    members = [
        n for n, t in launched.items() if {"Ref": "HeadSecurityGroup"} in t["LaunchTemplateData"]["SecurityGroupIds"]
    ]
    assert members == ["HeadLaunchTemplate"]
    assert document["Parameters"]["SshLocation"]["Default"] != "0.0.0.0/0"


def test_ssh_may_come_from_several_networks_and_from_this_machine():
    here = replace(FACTS, own_address="198.51.100.7")
    made = plan(here, ssh_from=["203.0.113.0/24", "auto", "198.51.100.7"])
    document = json.loads(synthesize(made))
    rules = document["Resources"]["HeadSecurityGroup"]["Properties"]["SecurityGroupIngress"]
    assert [rule["CidrIp"] for rule in rules] == [{"Ref": "SshLocation"}, "198.51.100.7/32"]
    assert document["Parameters"]["SshLocation"]["Default"] == "203.0.113.0/24"
    shown = "to the head from 203.0.113.0/24, 198.51.100.7/32 (this machine), 198.51.100.7/32"
    assert any(shown in line for line in explain(made))
    assert plan(ssh_from="anywhere").ssh_networks == ("0.0.0.0/0",)
    with raises_code("cloud-not-asked"):
        plan(ssh_from="auto")


def test_everything_else_comes_from_named_groups(document):
    (rule,) = resources(document, "AWS::EC2::SecurityGroupIngress").values()
    assert rule["GroupId"] == rule["SourceSecurityGroupId"] == {"Ref": "NodeSecurityGroup"}
    groups = resources(document, "AWS::EC2::SecurityGroup")
    assert "SecurityGroupIngress" not in groups["NodeSecurityGroup"]


def test_efa_finds_rules_that_name_the_group_both_ways(document):
    (out,) = resources(document, "AWS::EC2::SecurityGroupEgress").values()
    assert out["GroupId"] == out["DestinationSecurityGroupId"] == {"Ref": "NodeSecurityGroup"}
    for template in resources(document, "AWS::EC2::LaunchTemplate").values():
        assert {"Ref": "NodeSecurityGroup"} in template["LaunchTemplateData"]["SecurityGroupIds"]


def test_storage_takes_nfs_alone_and_reaches_nothing(document):
    storage = document["Resources"]["StorageSecurityGroup"]["Properties"]
    (rule,) = storage["SecurityGroupIngress"]
    assert (rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) == ("tcp", 2049, 2049)
    assert rule["SourceSecurityGroupId"] == {"Ref": "NodeSecurityGroup"}
    (out,) = storage["SecurityGroupEgress"]
    assert out["CidrIp"] == "127.0.0.1/32"


def test_a_boundary_limits_every_role_and_policies_are_of_jobs_alone():
    boundary, reads = "arn:aws:iam::123456789012:policy/b", "arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"
    document = json.loads(synthesize(plan(permissions_boundary=boundary, policies=[reads])))
    roles = resources(document, "AWS::IAM::Role")
    assert [role["PermissionsBoundary"] for role in roles.values()] == [{"Ref": "Boundary"}] * 4
    assert document["Parameters"]["Boundary"]["Default"] == boundary
    assert {name: role.get("ManagedPolicyArns") for name, role in roles.items()} == {
        **dict.fromkeys(ROLES),
        "JobRole": [reads],
    }


def test_jobs_may_read_their_data_and_write_where_the_file_says_so_and_nobody_else_may():
    made = plan(data={"imagenet": "s3://my-bucket/imagenet", "runs": "s3://other-bucket/runs/ rw"})
    roles = resources(json.loads(synthesize(made)), "AWS::IAM::Role")
    assert [name for name, role in roles.items() if "s3" in json.dumps(role)] == ["JobRole"]
    (policy,) = roles["JobRole"]["Policies"]
    lists, reads, lists_too, writes = policy["PolicyDocument"]["Statement"]
    assert (reads["Action"], reads["Resource"]) == (["s3:GetObject"], sub("s3:::my-bucket/imagenet/*"))
    assert lists["Condition"] == {"StringLike": {"s3:prefix": "imagenet/*"}}
    assert lists_too["Resource"] == sub("s3:::other-bucket")
    assert "s3:PutObject" in writes["Action"] and writes["Resource"] == sub("s3:::other-bucket/runs/*")
    assert any("imagenet: s3://my-bucket/imagenet/ (read), runs: " in line for line in explain(made))


def sub(resource: str) -> dict[str, str]:
    return {"Fn::Sub": f"arn:${{AWS::Partition}}:{resource}"}


def test_disks_and_shared_files_are_encrypted(document):
    assert document["Resources"]["FileSystem"]["Properties"]["Encrypted"] is True
    for template in resources(document, "AWS::EC2::LaunchTemplate").values():
        (volume,) = template["LaunchTemplateData"]["BlockDeviceMappings"]
        assert volume["Ebs"] == {"Encrypted": True, "VolumeType": "gp3", "DeleteOnTermination": True}
        assert template["LaunchTemplateData"]["MetadataOptions"]["HttpTokens"] == "required"
