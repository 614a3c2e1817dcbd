"""`down_after`: a cluster that was stopped and forgotten is removed: the document, and what is shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from clusters import FACTS, aws_spec, plan, spec
from error_codes import raises_code
from plans import CLOSED, PLANS, resources

from localcloud.cloudformation import rights
from localcloud.iam.policy import Ask, Decision, decide, like
from phalanx.aws.model import Running, StackState
from phalanx.cluster.spending import removed_at_s
from phalanx.errors import SpecError
from phalanx.plan.existing_vpc import NAT
from phalanx.plan.money import removal_steps
from phalanx.plan.plan import Plan, make_plan
from phalanx.plan.plan_text import as_dict, explain
from phalanx.spec.spec_checks import duration_s
from phalanx.template import synthesize
from phalanx.template.document import build
from phalanx.template.policy import policy

DAY_S = 86400
STACK = "arn:aws:cloudformation:us-east-1:123456789012:stack/demo/1"
PLACE = "us-east-1:123456789012"
SUBNET = "arn:aws:ec2:us-east-1:123456789012:subnet/subnet-1"
PRIVATE = {"cloud": "aws", "network": {"access": "private"}, "image": "dlami-base", "metrics": "yes"}
NATTED = replace(CLOSED, way_out=NAT)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(synthesize(plan(down_after_s=7 * DAY_S)))


# ---- the document


def test_without_the_key_there_is_nothing_of_it(document):
    without = json.loads(synthesize(plan()))
    more = {"RemovalRole", "RemovalPolicy", "RemovalRule", "RemovalPermission"}
    assert set(document["Resources"]) - set(without["Resources"]) == more
    assert "look" not in json.dumps(without["Resources"]["Function"])
    assert "DownAfter" not in without["Outputs"] and document["Outputs"]["DownAfter"]["Value"] == "604800"


def test_the_function_is_told_all_that_it_reads_and_knows_no_tag_itself(document):
    code = document["Resources"]["Function"]["Properties"]["Code"]["ZipFile"]["Fn::Sub"]
    told, program = (code.splitlines()[1], "\n".join(code.splitlines()[2:]))
    read = set(re.findall(r"(?:SETTINGS|environ)\[['\"](\w+)['\"]\]", program))
    assert {"CLUSTER_TAG", "KEEP_TAG", "STACK"} <= read
    assert read <= set(re.findall(r"(\w+)='", told))
    assert "phalanx:cluster" in told and "phalanx:cluster" not in program and "keep-until" not in program


def test_the_role_that_deletes_the_stack_outlives_it_and_nothing_else_new_does(document):
    kept = {name for name, one in document["Resources"].items() if one.get("DeletionPolicy", "").startswith("Retain")}
    assert kept == {"FileSystem", "LogGroup", "RemovalRole", "RemovalPolicy"}


def statements(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the role's rights, with the names that the stack's resources would have."""
    values = {"AWS::Partition": "aws", "AWS::Region": "us-east-1", "AWS::AccountId": "123456789012", "Id": "fs-1"}

    def arn(name: str) -> str:
        if name in values:
            return values[name]
        logical = name.removesuffix(".Arn")
        kind = document["Resources"][logical]["Type"]
        made = rights.calls(kind, "demo", PLACE, "delete", f"demo-{logical}-1")
        return next(one.resource for one in made if one.resource != "*")

    def text(value: Any) -> Any:
        if isinstance(value, dict) and "Fn::Split" in value:
            found = value["Fn::Split"][1]["Fn::Sub"]
            found = found if isinstance(found, str) else found[0]
            for name in sorted({part.split("}")[0] for part in found.split("${")[1:]}):
                found = found.replace(f"${{{name}}}", arn(name))
            return found.split(" ")
        if isinstance(value, dict) and "Fn::Sub" in value:
            return "*" if "network-interface" in value["Fn::Sub"] else SUBNET
        return "demo" if value == {"Ref": "AWS::StackName"} else value

    made = document["Resources"]["RemovalPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    for one in made:
        one["Resource"] = text(one["Resource"])
        for test in one.get("Condition", {}).values():
            test.update({key: text(value) for key, value in test.items()})
    return made


def deletions(document: dict[str, Any], cluster: str = "demo") -> list[Ask]:
    """Return the calls that delete the stack's resources."""
    found = []
    for name, one in document["Resources"].items():
        if one.get("DeletionPolicy", "").startswith("Retain"):
            continue
        about = {"AWS::EFS::MountTarget": "fs-1", "AWS::Lambda::Permission": f"{cluster}-Function-1"}
        about |= {
            "AWS::SQS::QueuePolicy": f"{cluster}-HeadQueue-1",
            "AWS::SNS::Subscription": f"{cluster}-FleetTopic-1",
        }
        groups = {"HeadGroup": "head", "WorkersGroup": "workers", "HeadLease": "head", "WorkersLease": "workers"}
        physical = f"{cluster}-{groups[name]}" if name in groups else about.get(one["Type"], f"{cluster}-{name}-1")
        if one["Type"] == "AWS::IAM::Policy":
            physical = f"{cluster}-HeadRole-1"
        found += rights.calls(one["Type"], cluster, PLACE, "delete", physical, one.get("Properties"))
    return found


def refused(made: list[dict[str, Any]], asked: list[Ask], tag: str = "demo") -> set[str]:
    tagged = {"aws:resourcetag/phalanx:cluster": [tag]}
    within = {"ec2:subnet": [SUBNET if tag == "demo" else f"{SUBNET}-2"]}
    asks = [replace(one, keys=within if one.action == rights.OF_EFS else tagged) for one in asked]
    return {one.action for one in asks if decide(made, one) is not Decision.ALLOWED}


@pytest.mark.parametrize(
    "more", [{}, {"policies": ["arn:aws:iam::aws:policy/ReadOnlyAccess"]}, {"storage": "head"}, PRIVATE]
)
def test_the_role_may_do_exactly_what_deletes_the_stack(more):
    made = json.loads(synthesize(plan(replace(FACTS, cloud=more.get("cloud", "local")), down_after_s=DAY_S, **more)))
    asked, found = deletions(made), statements(made)
    assert refused(found, asked) == set()
    for action in {action for one in found for action in one["Action"]} - {"autoscaling:Describe*", "ec2:Describe*"}:
        fewer = [{**one, "Action": [name for name in one["Action"] if name != action]} for one in found]
        concerned = [one for one in asked if like(action, one.action, ignore_case=True)]
        assert refused(fewer, concerned), f"{action} is not needed"


@pytest.mark.parametrize("name", [name for name, one in PLANS.items() if not one.uses_lustre])
def test_the_role_deletes_the_stack_of_every_plan(name):
    one = PLANS[name]
    made = json.loads(synthesize(make_plan(replace(one.spec, down_after_s=DAY_S), one.facts)))
    assert refused(statements(made), deletions(made)) == set()


def test_the_role_touches_no_other_cluster_and_no_data(document):
    found = statements(document)
    other = deletions(document, "demo-2")
    reading = {"ec2:Describe", "autoscaling:Describe"}
    changing = [one for one in other if not one.action.startswith(tuple(reading))]
    mount = {"elasticfilesystem:DeleteMountTarget", "elasticfilesystem:DescribeMountTargets"}
    assert refused(found, changing, "demo-2") == {one.action for one in changing} - mount
    data = [
        Ask("elasticfilesystem:DeleteFileSystem", "arn:aws:elasticfilesystem:us-east-1:123456789012:file-system/fs-1")
    ]
    assert refused(found, data) == {"elasticfilesystem:DeleteFileSystem"}


def test_only_the_function_may_have_the_stack_deleted_and_only_with_that_role(document):
    roles = resources(document, "AWS::IAM::Role")
    deleting = [name for name, one in roles.items() if "cloudformation:DeleteStack" in json.dumps(one)]
    assert deleting == ["FunctionRole"]
    (of_function,) = roles["FunctionRole"]["Policies"]
    (passing,) = (s for s in of_function["PolicyDocument"]["Statement"] if s["Action"] == ["iam:PassRole"])
    assert passing["Resource"] == {"Fn::GetAtt": ["RemovalRole", "Arn"]}
    assert passing["Condition"] == {"StringEquals": {"iam:PassedToService": "cloudformation.amazonaws.com"}}


@pytest.mark.parametrize(
    ("after_s", "rate", "warned_s"),
    [(7 * DAY_S, "rate(60 minutes)", DAY_S), (3600, "rate(2 minutes)", 900), (20, "rate(1 minute)", 60)],
)
def test_a_rule_looks_often_enough(after_s, rate, warned_s):
    (rule,) = resources(json.loads(synthesize(plan(down_after_s=after_s))), "AWS::Events::Rule").values()
    assert rule["ScheduleExpression"] == rate
    assert removal_steps(after_s)[1] == warned_s


def test_whoever_runs_up_may_make_and_delete_the_rule(document):
    made = policy(document, "demo")["Statement"]
    for doing in ("create", "update", "delete"):
        for ask in rights.calls("AWS::Events::Rule", "demo", PLACE, doing):
            assert decide(made, ask) is Decision.ALLOWED
    role = "arn:aws:iam::123456789012:role/phalanx/us-east-1/demo-RemovalRole-1"
    for action in ("iam:CreateRole", "iam:DeleteRole", "iam:PutRolePolicy", "iam:ListRoleTags"):
        assert decide(made, Ask(action, role)) is Decision.ALLOWED


# ---- the spec and the plan


def test_days_are_read_and_what_is_too_short_at_aws_is_refused():
    assert [duration_s(text) for text in ("7d", "1d12h")] == [7 * DAY_S, 36 * 3600]
    assert spec(down_after_s=20).down_after_s == 20, "in the local cloud"
    with raises_code("out-of-range", "down_after: ", "1800 s", "1h"):
        aws_spec(down_after_s=1800)
    with pytest.raises(SpecError, match="30 days is the longest"):
        aws_spec(down_after_s=31 * DAY_S)
    with raises_code("not-on-emr"):
        spec(
            cloud="emr", type="m5.xlarge", ssh_from="203.0.113.0/24", down_after_s=DAY_S, emr={"logs": "s3://bucket/x"}
        )


def test_a_plan_says_when_a_stopped_cluster_is_deleted():
    made = plan(down_after_s=7 * DAY_S + 3600)
    (line,) = (line for line in explain(made) if line.startswith("removal"))
    assert "AWS deletes the stack 7 d 1 h after its nodes have stopped, unless `up` came; the data in EFS stay" in line
    assert as_dict(made)["down_after_s"] == 7 * DAY_S + 3600


def test_in_a_vpc_of_the_user_s_others_matter_only_behind_the_stack_s_endpoints():
    def looked_at(made: Plan) -> bool:
        return "NETWORK='1'" in str(build(made).to_dict()["Resources"]["Function"])

    inside = PLANS["inside"]
    kept = replace(inside.facts, vpc=replace(inside.facts.vpc, head=NATTED, workers=NATTED))
    removed = replace(inside.spec, down_after_s=DAY_S)
    assert looked_at(plan(down_after_s=DAY_S)) and looked_at(make_plan(removed, inside.facts))
    assert not looked_at(make_plan(removed, kept))


# ---- what is shown


def test_the_date_that_is_shown_is_the_function_s():
    state = StackState("demo", STACK, "CREATE_COMPLETE", created_s=1000.0, outputs={"DownAfter": "600"})
    stopped = Running(0, stopped=True, end_s=None, idle_since_s=5000.0)
    assert removed_at_s(state, stopped) == 5600
    assert removed_at_s(replace(state, updated_s=5100.0), stopped) == 5700
    assert removed_at_s(state, replace(stopped, kept_until_s=9000.0)) == 9000
    assert removed_at_s(replace(state, outputs={}), stopped) is None
    assert removed_at_s(state, replace(stopped, idle_since_s=None)) is None
    assert removed_at_s(state, None) is None
