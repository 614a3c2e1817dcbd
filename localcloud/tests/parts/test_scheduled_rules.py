"""EventBridge's scheduled rules, as stacks make them: they invoke functions at their rate, where a policy allows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fleet_fakes import until
from stack_fakes import Stacks, stacks

from localcloud.messaging import functions, schedules

TRUST = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture
def invoked(monkeypatch) -> list[dict[str, Any]]:
    """The events that functions get; none of them is run."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(functions, "invoke_async", lambda _function, event: found.append(event))
    return found


def of(rate: str, **more: Any) -> dict[str, Any]:
    """Return a rule with this rate, its function, and what lets it invoke that."""
    role = {"AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [TRUST]}}
    function = {
        "Runtime": "python3.12",
        "Handler": "index.handler",
        "Role": {"Fn::GetAtt": ["Role", "Arn"]},
        "Code": {"ZipFile": "def handler(event, context): pass"},
    }
    target = {"Id": "it", "Arn": {"Fn::GetAtt": ["Function", "Arn"]}}
    permission = {
        "FunctionName": {"Ref": "Function"},
        "Action": "lambda:InvokeFunction",
        "Principal": "events.amazonaws.com",
        "SourceArn": {"Fn::GetAtt": ["Rule", "Arn"]},
    }
    return {
        "Role": {"Type": "AWS::IAM::Role", "Properties": role},
        "Function": {"Type": "AWS::Lambda::Function", "Properties": function},
        "Rule": {"Type": "AWS::Events::Rule", "Properties": {"ScheduleExpression": rate, "Targets": [target], **more}},
        "Permission": {"Type": "AWS::Lambda::Permission", "Properties": permission},
    }


def made(cloud: Stacks, resources: dict[str, Any]) -> str:
    return cloud.made(resources, Capabilities=["CAPABILITY_IAM"])


def arn_of(cloud: Stacks, stack: str) -> str:
    return cloud.client("events").describe_rule(Name=cloud.physical(stack, "Rule"))["Arn"]


def test_a_rule_invokes_its_function_at_its_rate_until_it_is_deleted(cloud, invoked):
    stack = made(cloud, of("rate(2 minutes)"))
    arn = arn_of(cloud, stack)
    cloud.clock.advance(119)
    assert invoked == []
    cloud.clock.advance(1)
    cloud.clock.advance(120)
    assert [(one["source"], one["detail-type"], one["resources"]) for one in invoked] == [
        ("aws.events", "Scheduled Event", [arn])
    ] * 2
    assert invoked[1]["time"] == cloud.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    assert cloud.deleted(stack) == "DELETE_COMPLETE"
    cloud.clock.advance(600)
    assert len(invoked) == 2


def test_without_a_permission_for_this_rule_nothing_is_invoked(cloud, invoked):
    resources = of("rate(1 minute)")
    resources["Permission"]["Properties"]["SourceArn"] = "arn:aws:events:us-east-1:123456789012:rule/another"
    stack = made(cloud, resources)
    cloud.clock.advance(60)
    assert invoked == []
    cloud.deleted(stack)


def test_a_rule_changes_its_rate_and_its_state_in_place(cloud, invoked):
    stack = made(cloud, of("rate(1 hour)"))

    def update(resources: dict[str, Any]) -> None:
        body = json.dumps({"Resources": resources})
        cloud.cloudformation.update_stack(StackName=stack, TemplateBody=body, Capabilities=["CAPABILITY_IAM"])
        until(lambda: cloud.describe(stack)["StackStatus"] == "UPDATE_COMPLETE", "the update")

    physical = cloud.physical(stack, "Rule")
    update(of("rate(1 minute)"))
    assert cloud.physical(stack, "Rule") == physical
    cloud.clock.advance(60)
    assert len(invoked) == 1
    update(of("rate(1 minute)", State="DISABLED"))
    cloud.clock.advance(600)
    assert len(invoked) == 1
    cloud.deleted(stack)


@pytest.mark.parametrize(
    "rate", ["rate(1 minutes)", "rate(5 minute)", "rate(0 minutes)", "rate(1 second)", "rate(one)"]
)
def test_a_rate_that_eventbridge_refuses_fails_the_stack(cloud, rate):
    stack = cloud.create(of(rate), Capabilities=["CAPABILITY_IAM"])
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert "Parameter ScheduleExpression is not valid" in cloud.reason(stack, "Rule", "CREATE_FAILED")


def test_what_would_have_no_effect_is_refused(cloud):
    stack = cloud.create(of("rate(1 minute)", EventPattern={"source": ["aws.ec2"]}), Capabilities=["CAPABILITY_IAM"])
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert "does not support EventPattern" in cloud.reason(stack, "Rule", "CREATE_FAILED")


def test_the_weather_hurries_a_rule(cloud, invoked, monkeypatch):
    monkeypatch.setattr(cloud.context.weather, "scaled", lambda seconds: seconds / 20)
    stack = made(cloud, of("rate(1 minute)"))
    cloud.clock.advance(3)
    assert len(invoked) == 1
    cloud.deleted(stack)


def test_rates_are_read_in_seconds():
    read = [schedules.rate_s(f"rate({one})") for one in ("1 minute", "5 minutes", "1 hour", "2 days")]
    assert read == [60, 300, 3600, 172800]
