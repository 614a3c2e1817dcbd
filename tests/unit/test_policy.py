"""The policy for a person who runs phalanx: every call is in it, and none that is not needed."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from itertools import chain
from pathlib import Path

import pytest
from aws_references import authorization
from clusters import FACTS, plan
from plans import EMR, PLANS, default_document

import phalanx
from localcloud.cloudformation import rights
from localcloud.cloudformation.errors import ResourceFailed
from localcloud.iam.policy import Ask, Decision, decide
from phalanx.data import location, table
from phalanx.plan.existing_vpc import INTERNET, NAT, ExistingVpc, Subnet
from phalanx.plan.plan import make_plan
from phalanx.template.document import build
from phalanx.template.permissions import (
    OF_DOCTOR,
    OF_DOCUMENTS,
    OPTIONAL,
    OWN,
    OWN_OF,
    OWN_OF_BUCKET,
    OWN_OF_PRIVATE,
    OWN_OF_SENT,
    needed,
)
from phalanx.template.policy import LOOKS_AT_KEY, of_service_role, parts, policy

SOURCES = Path(phalanx.__file__).parent
ROOT = Path(__file__).parents[2]
SERVICES = {"efs": "elasticfilesystem", "emr": "elasticmapreduce", "service-quotas": "servicequotas"}
SERVICES["resourcegroupstaggingapi"] = "tag"
PLACE = "us-east-1:123456789012"
HEAD = Subnet("subnet-00000001", "vpc-1", "us-east-1a", "10.1.0.0/28", 11, INTERNET)
WORKERS = replace(HEAD, subnet_id="subnet-00000002", cidr="10.1.1.0/28", way_out=NAT)
DOCUMENTS = {
    **{name: functools.partial(lambda one: build(one).to_dict(), one) for name, one in PLANS.items()},
    "emr": lambda: build(EMR).to_dict(),
}
# What the person asks CloudFormation for, and what its tags and a document in S3 need.
STACK = {"cloudformation:CreateStack", "cloudformation:TagResource", "ssm:GetParameters", "s3:GetObject"}
# Of the calls that take a right with another name (docs/aws-behaviour.md 12.1, 12.11).
RIGHTS = {
    ("s3", "head_bucket"): "s3:ListBucket",
    ("s3", "get_bucket_encryption"): "s3:GetEncryptionConfiguration",
    ("s3", "get_public_access_block"): "s3:GetBucketPublicAccessBlock",
    ("s3control", "get_public_access_block"): "s3:GetAccountPublicAccessBlock",
}


def made_calls() -> set[str]:
    """Return the IAM actions of the calls that the sources name."""
    services = "s3|emr|ec2|autoscaling|efs|fsx|logs|sqs|dynamodb|sns|lambda|iam|ssm|service-quotas|cloudformation"
    services += "|pricing|events|s3control|resourcegroupstaggingapi"
    pattern = rf'"({services})",\s*"([a-z_]+)"'
    files = [file for room in ("aws", "emr", "cluster") for file in (SOURCES / room).rglob("*.py")]
    found = {pair for file in files for pair in re.findall(pattern, file.read_text())}
    listed = re.findall(
        r'^    "(describe_[a-z_]+)": \(', (SOURCES / "aws" / "inventory" / "remains.py").read_text(), re.M
    )
    found |= {("ec2", operation) for operation in listed}
    return {action(*pair) for pair in found if "_" in pair[1]}


def action(service: str, operation: str) -> str:
    if (service, operation) in RIGHTS:
        return RIGHTS[service, operation]
    name = "".join(word.title() for word in operation.split("_"))
    return f"{SERVICES.get(service, service)}:{name.replace('Aws', 'AWS')}"


def refused(statements: list[dict], only: str = "") -> list[str]:
    """Return the calls of CloudFormation that these statements do not allow for a stack, made, changed and deleted.

    `only`: look at the calls of this action.
    """
    return refused_of(statements, [one for one in calls_of_the_default() if only in ("", one.action)])


def refused_of(statements: list[dict], asks: list[Ask]) -> list[str]:
    return sorted({one.action for one in asks if decide(statements, one) is not Decision.ALLOWED})


@functools.cache
def calls_of_the_default() -> list[Ask]:
    return calls_of(default_document())


def calls_of(document: dict, boundary: str = "") -> list[Ask]:
    """Return the calls that make, change and delete a stack of the document, whose roles have this boundary."""
    made = document["Resources"].values()
    return [call for one in made for call in calls(one["Type"], one.get("Properties", {}), boundary)]


def calls(kind: str, properties: dict | None = None, boundary: str = "") -> list[Ask]:
    """Return the calls that make, change and delete a resource of a type, each with the ARN that it is about."""
    given = {name: one for name, one in (properties or {}).items() if name != "PermissionsBoundary"}
    given |= {"PermissionsBoundary": boundary} if kind == "AWS::IAM::Role" and boundary else {}
    tags = {"phalanx:cluster": "demo"}
    verbs = ("create", "update", "delete")
    return [call for doing in verbs for call in rights.calls(kind, "demo", PLACE, doing, "", given, tags, boundary)]


def without(statements: list[dict], removed: str) -> list[dict]:
    return [{**s, "Action": [one for one in s["Action"] if one != removed]} for s in statements]


# Which CloudFormation needs as well, and phalanx for a dry run only.
DRY_RUN = {"ec2:RunInstances"}


def test_phalanx_makes_exactly_the_calls_that_the_policy_allows_it():
    allowed = {*OWN, *chain(*OWN_OF.values()), *OWN_OF_PRIVATE, *OWN_OF_BUCKET, *OWN_OF_SENT, *OF_DOCUMENTS, *OPTIONAL}
    assert made_calls() - DRY_RUN | STACK == allowed | {*OF_DOCTOR}


def test_every_type_of_every_plan_has_its_calls():
    for one in PLANS.values():
        assert policy(build(one).to_dict(), "demo")["Statement"]


def test_a_stack_is_made_and_deleted_with_exactly_this_policy():
    assert refused(policy(default_document(), "demo")["Statement"]) == []


def test_a_stack_whose_file_system_demands_tls_is_made_with_its_policy():
    document = build(PLANS["arm"]).to_dict()
    calls = calls_of(document)
    assert "elasticfilesystem:PutFileSystemPolicy" in {one.action for one in calls}
    assert refused_of(policy(document, "demo")["Statement"], calls) == []


def test_clusters_of_any_name_are_made_and_deleted_with_one_policy():
    assert refused(policy(default_document(), "*")["Statement"]) == []


def test_each_action_is_needed():
    """Without it a call of CloudFormation's is refused, or one of phalanx's own."""
    statements = policy(default_document(), "demo")["Statement"]
    actions = {one for statement in statements for one in statement["Action"]}
    assert [one for one in sorted(actions - {*OWN, *OPTIONAL}) if not refused(without(statements, one), one)] == []


# One of each that a handler calls and that a look at the API alone does not show.
NEWLY_READ = (
    ("AWS::DynamoDB::Table", "create", "dynamodb:DescribeContinuousBackups"),
    ("AWS::DynamoDB::Table", "create", "dynamodb:DescribeTimeToLive"),
    ("AWS::DynamoDB::Table", "create", "dynamodb:GetResourcePolicy"),
    ("AWS::DynamoDB::Table", "create", "dynamodb:ListTagsOfResource"),
    ("AWS::EC2::EIP", "delete", "ec2:DisassociateAddress"),
    ("AWS::EFS::FileSystem", "create", "elasticfilesystem:DescribeBackupPolicy"),
    ("AWS::EFS::FileSystem", "create", "elasticfilesystem:DescribeFileSystemPolicy"),
    ("AWS::EFS::FileSystem", "create", "elasticfilesystem:DescribeLifecycleConfiguration"),
    ("AWS::EFS::FileSystem", "delete", "elasticfilesystem:DescribeReplicationConfigurations"),
    ("AWS::Lambda::Function", "create", "lambda:GetFunctionCodeSigningConfig"),
    ("AWS::Lambda::Permission", "create", "lambda:GetPolicy"),
    ("AWS::SNS::Topic", "create", "sns:ListSubscriptionsByTopic"),
    ("AWS::SNS::Topic", "create", "sns:ListTagsForResource"),
    ("AWS::SQS::Queue", "create", "sqs:GetQueueUrl"),
    ("AWS::SQS::Queue", "create", "sqs:ListQueueTags"),
)


@functools.cache
def statements_of_the_largest() -> list[dict]:
    return policy(build(PLANS["worst"]).to_dict(), "demo")["Statement"]


@pytest.mark.parametrize(("kind", "doing", "removed"), NEWLY_READ)
def test_without_one_of_the_rights_of_a_handler_the_local_cloud_refuses_the_stack(kind, doing, removed):
    def may(statements: list[dict], action: str, arn: str, keys: dict) -> str:
        allowed = decide(statements, Ask(action, arn, keys)) is Decision.ALLOWED
        return "" if allowed else f"not authorized to perform: {action}"

    statements, tags = statements_of_the_largest(), {"phalanx:cluster": "demo"}
    rights.require(functools.partial(may, statements), kind, "demo", PLACE, tags, doing)
    with pytest.raises(ResourceFailed, match=f"not authorized to perform: {removed}"):
        rights.require(functools.partial(may, without(statements, removed)), kind, "demo", PLACE, tags, doing)


def test_both_tables_have_every_type_that_the_template_can_make():
    loader = SourceFileLoader("generator", str(ROOT / "scripts" / "rights"))
    generator = importlib.util.module_from_spec(importlib.util.spec_from_loader("generator", loader))
    loader.exec_module(generator)
    made = {one["Type"] for name in DOCUMENTS for one in DOCUMENTS[name]()["Resources"].values()}
    assert made <= generator.emitted() == set(table("rights")["types"]) == set(rights.types())


def test_phalanx_and_the_local_cloud_have_the_same_table():
    """Neither may import the other."""
    theirs = Path(rights.__file__).with_suffix(".json")
    assert theirs.read_bytes() == location("rights").read_bytes()


@pytest.mark.parametrize(
    ("kind", "properties", "action"),
    [
        ("AWS::EC2::EIP", {"InstanceId": "i-1"}, "ec2:AssociateAddress"),
        ("AWS::EFS::FileSystem", {"KmsKeyId": "key"}, "kms:DescribeKey"),
        ("AWS::Lambda::Function", {"Code": {"S3Bucket": "mine"}}, "s3:GetObject"),
        ("AWS::Lambda::Function", {"Layers": ["arn"]}, "lambda:GetLayerVersion"),
    ],
)
def test_a_right_for_a_property_is_needed_with_it_alone(kind, properties, action):
    for given, verdict in ((properties, True), ({}, False)):
        assert (action in needed({"Resources": {"A": {"Type": kind, "Properties": given}}})) == verdict
        assert (action in rights.actions(kind, "create", given)) == verdict


def test_nothing_of_another_cluster_is_touched():
    statements = policy(default_document(), "demo")["Statement"]
    other = {"aws:resourcetag/phalanx:cluster": ["other"]}
    for name, arn in (
        ("ec2:CreateTags", "arn:aws:ec2:us-east-1:1:vpc/vpc-1"),
        ("ec2:AuthorizeSecurityGroupIngress", "arn:aws:ec2:us-east-1:1:security-group/sg-1"),
        ("ec2:CreateRoute", "arn:aws:ec2:us-east-1:1:route-table/rtb-1"),
        ("elasticfilesystem:TagResource", "arn:aws:elasticfilesystem:us-east-1:1:file-system/fs-1"),
        ("ssm:GetParameter", "arn:aws:ssm:us-east-1:1:parameter/secret"),
        ("ec2:DeleteVpc", "arn:aws:ec2:us-east-1:1:vpc/vpc-1"),
        ("cloudformation:DeleteStack", "arn:aws:cloudformation:us-east-1:1:stack/other/1"),
        ("iam:PassRole", "arn:aws:iam::1:role/admin"),
        (
            "autoscaling:UpdateAutoScalingGroup",
            "arn:aws:autoscaling:us-east-1:1:autoScalingGroup:1:autoScalingGroupName/x",
        ),
        ("elasticfilesystem:DeleteFileSystem", "arn:aws:elasticfilesystem:us-east-1:1:file-system/fs-1"),
    ):
        assert decide(statements, Ask(name, arn, other)) is not Decision.ALLOWED, name


@pytest.mark.parametrize("name", DOCUMENTS)
def test_iam_knows_every_action_and_two_managed_policies_are_long_enough(name):
    made = policy(DOCUMENTS[name](), "n" * 48)
    for one in (name for statement in made["Statement"] for name in statement["Action"]):
        service, _, verb = one.partition(":")
        assert verb.lower() in authorization()[service]["Actions"], one
    pieces = parts(made)
    assert len(pieces) <= 2
    assert [one for piece in pieces for one in piece["Statement"]] == made["Statement"]
    assert all(len(re.sub(r"\s", "", json.dumps(piece))) <= 6144 for piece in pieces)


def test_a_policy_for_any_name_lets_its_owner_delete_clusters_of_any_name():
    statements = policy(default_document(), "*")["Statement"]
    assert refused(statements) == []
    stranger = Ask("ec2:DeleteVpc", "arn:aws:ec2:us-east-1:1:vpc/vpc-1", {})
    assert decide(statements, stranger) is not Decision.ALLOWED, "nothing without a cluster's tag"


def test_what_a_stack_adds_to_a_file_system_of_the_user_s_is_taken_away_again():
    theirs = {"FileSystemId": {"Type": "String", "Default": "fs-1"}}
    rule = {"Type": "AWS::EC2::SecurityGroupIngress", "Properties": {"GroupId": "sg-1"}}
    made = {"Parameters": theirs, "Resources": {"A": {"Type": "AWS::EFS::MountTarget"}, "B": rule}}
    statements = policy(made, "demo")["Statement"]
    for action, arn, verdict in (
        ("elasticfilesystem:DeleteMountTarget", f"arn:aws:elasticfilesystem:{PLACE}:file-system/fs-1", True),
        ("elasticfilesystem:DeleteMountTarget", f"arn:aws:elasticfilesystem:{PLACE}:file-system/fs-2", False),
        ("elasticfilesystem:DeleteFileSystem", f"arn:aws:elasticfilesystem:{PLACE}:file-system/fs-1", False),
        ("ec2:RevokeSecurityGroupIngress", f"arn:aws:ec2:{PLACE}:security-group/sg-1", True),
        ("ec2:RevokeSecurityGroupIngress", f"arn:aws:ec2:{PLACE}:security-group/sg-2", False),
    ):
        assert (decide(statements, Ask(action, arn)) is Decision.ALLOWED) == verdict, (action, arn)


def test_the_subnets_of_an_existing_vpc_may_be_another_clusters():
    network = {"head_subnet": HEAD.subnet_id, "worker_subnet": WORKERS.subnet_id}
    facts = replace(FACTS, vpc=ExistingVpc(HEAD.vpc, True, True, HEAD, WORKERS))
    statements = policy(build(plan(facts, network=network)).to_dict(), "demo")["Statement"]
    other = {"aws:resourcetag/phalanx:cluster": ["other"]}
    for action, resource, verdict in (
        ("ec2:CreateSecurityGroup", "vpc/vpc-1", True),
        ("ec2:CreateSecurityGroup", "vpc/vpc-2", False),
        ("ec2:DescribeVpcAttribute", "vpc/vpc-1", True),
        ("ec2:RunInstances", "subnet/subnet-00000001", True),
        ("ec2:RunInstances", "subnet/subnet-00000002", True),
        ("ec2:RunInstances", "security-group/sg-1", False),
        ("ec2:CreateNetworkInterface", "subnet/subnet-00000002", True),
        ("ec2:CreateTags", "vpc/vpc-1", False),
        ("ec2:ModifySubnetAttribute", "subnet/subnet-00000001", False),
    ):
        allowed = decide(statements, Ask(action, f"arn:aws:ec2:{PLACE}:{resource}", other)) is Decision.ALLOWED
        assert allowed == verdict, (action, resource)


def test_a_policy_that_is_too_long_is_printed_in_parts(phalanx):
    Path("phalanx.yaml").write_text("name: demo\nnodes: 2\n")
    assert phalanx("policy", "--offline") == 0
    whole, noted = json.loads(phalanx.out), phalanx.err
    assert "a managed policy may have 6,144: `--part 1`, `--part 2` print parts" in noted
    found = []
    for number in ("1", "2"):
        assert phalanx("policy", "--offline", "--part", number) == 0
        found += json.loads(phalanx.out)["Statement"]
    assert found == whole["Statement"]
    assert phalanx("policy", "--offline", "--part", "3") == 2
    assert "--part 3: there are 2 parts" in phalanx.err


def test_images_and_buckets_are_those_of_the_document():
    own = plan(image="/images/mine", data={"runs": "s3://my-bucket/runs rw"})
    statements = policy(build(own).to_dict(), "demo")["Statement"]
    for action, arn, verdict in (
        ("ssm:GetParameters", f"arn:aws:ssm:{PLACE}:parameter/images/mine", True),
        ("ssm:GetParameter", f"arn:aws:ssm:{PLACE}:parameter/images/other", False),
        ("s3:ListBucket", "arn:aws:s3:::my-bucket", True),
        ("s3:ListBucket", "arn:aws:s3:::other-bucket", False),
        ("s3:PutObject", "arn:aws:s3:::my-bucket/runs/a", False),
    ):
        assert (decide(statements, Ask(action, arn)) is Decision.ALLOWED) == verdict, (action, arn)
    agent = policy(build(EMR).to_dict(), "demo")["Statement"]
    uploaded = Ask("s3:PutObject", "arn:aws:s3:::bucket/logs/phalanx/agent-0123456789ab.sh")
    assert decide(agent, uploaded) is Decision.ALLOWED
    assert decide(agent, Ask("s3:PutObject", "arn:aws:s3:::bucket/data")) is not Decision.ALLOWED


@pytest.mark.parametrize(
    ("name", "action", "resource", "verdict"),
    [
        ("demo", "s3:PutObject", "documents/phalanx/demo-0123456789abcdef.json", True),
        ("*", "s3:PutObject", "documents/phalanx/demo-0123456789abcdef.json", True),
        ("demo", "s3:DeleteObject", "documents/phalanx/other-0123456789abcdef.json", False),
        ("demo", "s3:GetObject", "documents/data", False),
        ("*", "s3:GetObject", "documents/data", False),
        ("demo", "s3:GetBucketPolicyStatus", "documents", True),
        ("demo", "s3:GetBucketPolicyStatus", "other", False),
    ],
)
def test_of_the_bucket_for_documents_only_these_are_allowed(name, action, resource, verdict):
    ask = Ask(action, f"arn:aws:s3:::{resource}")
    made = build(plan(bucket="documents"))
    statements = policy(made.to_dict(), name, "documents")["Statement"]
    assert (decide(statements, ask) is Decision.ALLOWED) == verdict
    assert decide(policy(made.to_dict(), name)["Statement"], ask) is not Decision.ALLOWED
    assert [one for one in on_all_resources({"Statement": statements}) if not takes(one, "*")] == []
    read = Ask("cloudformation:GetTemplate", f"arn:aws:cloudformation:{PLACE}:stack/demo/1")
    assert decide(statements, read) is Decision.ALLOWED
    assert decide(policy(made.to_dict(), name)["Statement"], read) is not Decision.ALLOWED


@pytest.mark.parametrize("words", [(), ("--any-name",)])
def test_the_policy_is_printed_for_the_file_or_for_any_name(phalanx, words):
    Path("phalanx.yaml").write_text("name: demo\nnodes: 2\n")
    assert phalanx("policy", "--offline", *words) == 0
    resources = json.dumps([one["Resource"] for one in json.loads(phalanx.out)["Statement"]])
    assert ("stack/*/*" if words else "stack/demo/*") in resources


def test_the_first_cluster_of_an_account_may_have_services_make_their_own_roles():
    """And no other service, nor a role with another path."""
    roles = "arn:aws:iam::123456789012:role/aws-service-role"
    scaling = f"{roles}/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
    efs = f"{roles}/elasticfilesystem.amazonaws.com/AWSServiceRoleForAmazonElasticFileSystem"
    emr = f"{roles}/elasticmapreduce.amazonaws.com/AWSServiceRoleForEMRCleanup"
    other = f"{roles}/organizations.amazonaws.com/AWSServiceRoleForOrganizations"
    for made, allowed in ((default_document(), {scaling, efs}), (DOCUMENTS["emr"](), {efs, emr})):
        statements = policy(made, "demo")["Statement"]
        asks = {arn: Ask("iam:CreateServiceLinkedRole", arn) for arn in (scaling, efs, emr, other)}
        assert {arn for arn, ask in asks.items() if decide(statements, ask) is Decision.ALLOWED} == allowed


@pytest.mark.parametrize("made", [plan(), EMR], ids=["aws", "emr"])
def test_spot_instances_have_a_role_of_their_own(made):
    made = make_plan(replace(made.spec, capacity="spot"), made.facts)
    role = "arn:aws:iam::123456789012:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
    ask = Ask("iam:CreateServiceLinkedRole", role)
    assert decide(policy(build(made).to_dict(), "demo")["Statement"], ask) is Decision.ALLOWED
    assert decide(policy(default_document(), "demo")["Statement"], ask) is not Decision.ALLOWED


@pytest.mark.parametrize(
    "kind",
    [
        *("AutoScaling::AutoScalingGroup", "EFS::MountTarget", "EMR::Cluster"),
        *("FSx::DataRepositoryAssociation", "FSx::FileSystem"),
    ],
)
def test_without_the_right_to_a_service_s_role_the_local_cloud_refuses_what_needs_it(kind):
    """It always judges as at an account's first call."""

    def may(action: str, _arn: str, _keys: object) -> str:
        return f"not authorized to perform: {action}" if action == "iam:CreateServiceLinkedRole" else ""

    with pytest.raises(ResourceFailed, match="not authorized to perform: iam:CreateServiceLinkedRole"):
        rights.require(may, f"AWS::{kind}", "demo", PLACE, {}, "create")
    rights.require(may, f"AWS::{kind}", "demo", PLACE, {}, "delete")


BOUNDARY = "arn:aws:iam::123456789012:policy/boundary"
READS = "arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"


@functools.cache
def bounded() -> list[dict]:
    """Return the statements of the policy for a cluster with a permissions boundary."""
    document = build(plan(permissions_boundary=BOUNDARY, policies=[READS], down_after_s=172800)).to_dict()
    statements = policy(document, "demo")["Statement"]
    assert refused_of(statements, calls_of(document, BOUNDARY)) == []
    assert refused_of(statements, calls_of(document)) != [], "the same stack without the boundary"
    return statements


@pytest.mark.parametrize(
    ("action", "keys", "verdict"),
    [
        ("CreateRole", {"iam:permissionsboundary": [BOUNDARY]}, True),
        ("CreateRole", {}, False),
        ("CreateRole", {"iam:permissionsboundary": [f"{BOUNDARY}-of-others"]}, False),
        ("PutRolePolicy", {"iam:permissionsboundary": [BOUNDARY]}, True),
        ("PutRolePolicy", {}, False),
        ("DeleteRolePolicy", {}, False),
        ("DetachRolePolicy", {"iam:policyarn": [READS]}, False),
        ("PutRolePermissionsBoundary", {"iam:permissionsboundary": [f"{BOUNDARY}-of-others"]}, False),
        ("DeleteRolePermissionsBoundary", {"iam:permissionsboundary": [BOUNDARY]}, False),
        ("AttachRolePolicy", {"iam:permissionsboundary": [BOUNDARY], "iam:policyarn": [READS]}, True),
        ("AttachRolePolicy", {"iam:policyarn": [READS]}, False),
        ("PassRole", {"iam:passedtoservice": ["ec2.amazonaws.com"]}, True),
        ("PassRole", {"iam:passedtoservice": ["glue.amazonaws.com"]}, False),
        ("PassRole", {}, False),
    ],
)
def test_whoever_has_a_boundary_s_policy_can_not_undo_the_boundary(action, keys, verdict):
    ask = Ask(f"iam:{action}", "arn:aws:iam::123456789012:role/demo-HeadRole-0123456789AB", keys)
    assert (decide(bounded(), ask) is Decision.ALLOWED) == verdict


@pytest.mark.parametrize("statements", [bounded, lambda: policy(default_document(), "demo")["Statement"]])
def test_only_policies_of_the_file_can_be_attached(statements):
    keys = {"iam:permissionsboundary": [BOUNDARY], "iam:policyarn": ["arn:aws:iam::aws:policy/AdministratorAccess"]}
    ask = Ask("iam:AttachRolePolicy", "arn:aws:iam::123456789012:role/demo-HeadRole-0123456789AB", keys)
    assert decide(statements(), ask) is not Decision.ALLOWED


def test_policies_of_jobs_take_the_right_to_attach_them():
    reads = "arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"
    without, attached = (build(one).to_dict() for one in (plan(), plan(policies=[reads])))
    assert {*needed(attached)} - {*needed(without)} == {"iam:AttachRolePolicy", "iam:DetachRolePolicy"}


# ---- by AWS's authorization reference, as cfn-lint ships it


def takes(action: str, arn: str) -> bool:
    """Whether IAM judges an action on a resource like this one."""
    service, _, verb = action.partition(":")
    known = authorization()[service]
    kinds = known["Actions"][verb.lower()].get("Resources", ())
    formats = [known["Resources"].get(kind.lower(), {}).get("ARNFormats", ()) for kind in kinds]
    if not all(formats):
        return arn != "*"  # The file lacks some formats.
    patterns = [re.sub(r"\$\{\w+\}", "[^:/]*", one) for one in chain(*formats)]
    return any(re.fullmatch(pattern, arn) for pattern in patterns) if kinds else arn == "*"


@pytest.mark.parametrize("kind", [*rights.types()])
def test_cloudformation_is_judged_on_resources_that_the_action_takes(kind):
    assert sorted((one.action, one.resource) for one in calls(kind) if not takes(one.action, one.resource)) == []


def on_all_resources(made: dict) -> set[str]:
    return {action for one in made["Statement"] if "*" in one["Resource"] for action in one["Action"]}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_nothing_is_allowed_on_all_resources_that_iam_judges_on_single_ones(name):
    wide = on_all_resources(policy(DOCUMENTS[name](), "demo"))
    assert wide
    assert [one for one in sorted(wide) if not takes(one, "*")] == []


def test_with_a_service_role_the_person_makes_nothing_but_what_phalanx_itself_calls():
    given = "arn:aws:iam::123456789012:role/stacks"
    for plan_ in PLANS.values():
        document = build(plan_).to_dict()
        statements = policy(document, "demo", service_role=given)["Statement"]
        own = {
            *LOOKS_AT_KEY,
            "kms:Decrypt",
            "kms:GenerateDataKey",
            *OWN,
            *OPTIONAL,
            *chain(*OWN_OF.values()),
            *OWN_OF_PRIVATE,
            "ssm:GetParameter",
            "s3:ListBucket",
        }
        assert {one for statement in statements for one in statement["Action"]} - own <= {
            *("iam:PassRole", "ssm:StartSession", "ssm:TerminateSession", "ssmmessages:OpenDataChannel"),
            *("s3:GetBucketPolicy", "s3:PutObject"),
        }
        (passed,) = [one for one in statements if "iam:PassRole" in one["Action"]]
        assert passed["Resource"] == [given]
        assert passed["Condition"] == {"StringEquals": {"iam:PassedToService": "cloudformation.amazonaws.com"}}


def test_a_stack_is_made_and_deleted_with_exactly_the_service_role_s_policy():
    statements = of_service_role(default_document(), "demo")["PolicyDocument"]["Statement"]
    assert refused(statements) == []
    actions = {one for statement in statements for one in statement["Action"]}
    needless = [one for one in sorted(actions) if not refused(without(statements, one), one)]
    # CloudFormation looks images up (docs/aws-behaviour.md 1.47).
    assert needless == ["ssm:GetParameters"]


def test_a_service_role_is_bound_to_the_boundary_and_to_the_services_that_get_roles():
    boundary = "arn:aws:iam::123456789012:policy/b"
    document = build(plan(permissions_boundary=boundary)).to_dict()
    made = of_service_role(document, "demo")
    (statement,) = made["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": "cloudformation.amazonaws.com"}
    found = {one["Sid"]: one.get("Condition") for one in made["PolicyDocument"]["Statement"]}
    assert found["Roles"] == {"ArnEquals": {"iam:PermissionsBoundary": boundary}}
    assert "ec2.amazonaws.com" in found["PassRoles"]["StringEquals"]["iam:PassedToService"]
