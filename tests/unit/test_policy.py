"""The policy for a person who runs phalanx: every call is in it, and none that is not needed."""

from __future__ import annotations

import importlib.util
import json
import re
from itertools import chain
from pathlib import Path

import pytest
from clusters import plan
from plans import PLANS, default_document

import phalanx
from phalanx.localcloud.cloudformation import rights
from phalanx.localcloud.iam.policy import Ask, Decision, decide
from phalanx.template.document import build
from phalanx.template.permissions import OPTIONAL, OWN, OWN_OF, OWN_OF_PRIVATE, needed, policy

SOURCES = Path(phalanx.__file__).parent
SERVICES = {"efs": "elasticfilesystem", "emr": "elasticmapreduce", "service-quotas": "servicequotas"}
PLACE = "us-east-1:123456789012"
TAGGED = {"aws:resourcetag/phalanx:cluster": ["demo"]}
# What the person asks CloudFormation for, and what its tags need.
STACK = {"cloudformation:CreateStack", "cloudformation:TagResource"}


def made_calls() -> set[str]:
    """Return the IAM actions of the calls that the sources name."""
    services = "s3|emr|ec2|autoscaling|efs|fsx|logs|sqs|dynamodb|sns|lambda|iam|ssm|service-quotas|cloudformation"
    services += "|pricing"
    pattern = rf'"({services})",\s*"([a-z_]+)"'
    clouds = [file for file in (SOURCES / "clouds").glob("*.py") if file.name != "local.py"]
    files = [*clouds, *(SOURCES / "cluster").glob("*.py")]
    found = {pair for file in files for pair in re.findall(pattern, file.read_text())}
    listed = re.findall(r'^    "(describe_[a-z_]+)": \(', (SOURCES / "clouds" / "remains.py").read_text(), re.M)
    found |= {("ec2", operation) for operation in listed}
    return {action(*pair) for pair in found if "_" in pair[1]}


def action(service: str, operation: str) -> str:
    if (service, operation) == ("s3", "head_bucket"):
        return "s3:ListBucket"  # docs/aws-behaviour.md 12.1
    name = "".join(word.title() for word in operation.split("_"))
    return f"{SERVICES.get(service, service)}:{name.replace('Aws', 'AWS')}"


def refused(statements: list[dict], only: str = "") -> list[str]:
    """Return the calls of CloudFormation that these statements do not allow for a stack, made, changed and deleted.

    `only`: look at the calls of this action.
    """
    kinds = {resource["Type"] for resource in default_document()["Resources"].values()}
    asked = [
        call
        for kind in kinds
        for doing in ("create", "update", "delete")
        for call in rights.calls(kind, "demo", PLACE, doing)
    ]
    chosen = [(name, arn) for name, arn in asked if only in ("", name)]
    return [name for name, arn in chosen if decide(statements, Ask(name, arn, TAGGED)) is not Decision.ALLOWED]


def without(statements: list[dict], removed: str) -> list[dict]:
    return [{**s, "Action": [one for one in s["Action"] if one != removed]} for s in statements]


def test_phalanx_makes_exactly_the_calls_that_the_policy_allows_it():
    assert made_calls() | STACK == {*OWN, *chain(*OWN_OF.values()), *OWN_OF_PRIVATE, *OPTIONAL}


def test_every_type_of_every_plan_has_its_calls():
    for one in PLANS.values():
        assert policy(build(one).to_dict(), "demo")["Statement"]


def test_a_stack_is_made_and_deleted_with_exactly_this_policy():
    assert refused(policy(default_document(), "demo")["Statement"]) == []


def test_clusters_of_any_name_are_made_and_deleted_with_one_policy():
    assert refused(policy(default_document(), "*")["Statement"]) == []


def test_each_action_is_needed():
    """Without it a call of CloudFormation's is refused, or one of phalanx's own."""
    statements = policy(default_document(), "demo")["Statement"]
    actions = {one for statement in statements for one in statement["Action"]}
    assert [one for one in sorted(actions - {*OWN, *OPTIONAL}) if not refused(without(statements, one), one)] == []


def test_nothing_of_another_cluster_is_touched():
    statements = policy(default_document(), "demo")["Statement"]
    other = {"aws:resourcetag/phalanx:cluster": ["other"]}
    for name, arn in (
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


def test_iam_knows_every_action_and_a_managed_policy_may_be_as_long():
    made = policy(default_document(), "n" * 48)
    assert len(re.sub(r"\s", "", json.dumps(made))) <= 6144
    found = importlib.util.find_spec("cfnlint")
    assert found is not None and found.origin is not None
    known = json.loads((Path(found.origin).parent / "data" / "AdditionalSpecs" / "Policies.json").read_text())
    for one in (name for statement in made["Statement"] for name in statement["Action"]):
        service, _, verb = one.partition(":")
        assert verb.lower() in known[service]["Actions"], one


@pytest.mark.parametrize("words", [(), ("--any-name",)])
def test_the_policy_is_printed_for_the_file_or_for_any_name(phalanx, words):
    Path("phalanx.yaml").write_text("name: demo\nnodes: 2\n")
    assert phalanx("policy", "--offline", *words) == 0
    resources = json.dumps([one["Resource"] for one in json.loads(phalanx.out)["Statement"]])
    assert ("stack/*/*" if words else "stack/demo/*") in resources


def test_policies_of_jobs_take_the_right_to_attach_them():
    reads = "arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"
    without, attached = (build(one).to_dict() for one in (plan(), plan(policies=[reads])))
    assert {*needed(attached)} - {*needed(without)} == {"iam:AttachRolePolicy", "iam:DetachRolePolicy"}
