"""`phalanx plan --on-aws`: AWS judges a plan before anything is made, and nothing of that stays, whatever happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from large_documents import FIXTURES, keys, person
from stack_fakes import TOPIC, Stacks

from localcloud.daemon import faults
from localcloud.iam.policy import statements_of
from localcloud.weather.forecast import Forecast
from phalanx.errors import CloudUnreachable

aws, bucket, local, s3, use, write = FIXTURES

PLACE = "/Resources/HeadLaunchTemplate/Properties/LaunchTemplateData/InstanceType"
NAME = {
    "logical_id": "RosterTable",
    "name": "NAME_CONFLICT_VALIDATION",
    "reason": "Resource of type 'AWS::DynamoDB::Table' with identifier 'x' already exists.",
}
PROPERTY = {"logical_id": "HeadLaunchTemplate", "reason": "z is not a valid enum value", "path": PLACE}
ADDRESS = {"logical_id": "NatAddress", "reason": "5 of 5 are in use", "name": "SERVICE_QUOTA", "mode": "WARN"}
BODY = json.dumps({"Resources": {"Topic": TOPIC}})
SIMULATOR = {"Effect": "Allow", "Action": ["iam:SimulatePrincipalPolicy"], "Resource": "*"}
FEW = {"team": "vision"}


@pytest.fixture
def plant(local: Stacks) -> Iterator[Callable[..., None]]:
    """Plant what validations find; lift it afterwards."""

    def planted(*validations: dict[str, Any]) -> None:
        faults.apply(local.context, {"change_sets": {"validations": list(validations)}})

    yield planted
    planted()


@pytest.fixture
def asked(phalanx) -> Callable[..., dict[str, Any]]:
    def ask(status: int = 0) -> dict[str, Any]:
        assert phalanx("plan", "--on-aws", "--json") == status, phalanx.out + phalanx.err
        return json.loads(phalanx.out)["on_aws"]

    return ask


def status_of(local: Stacks, cluster: str) -> str:
    found = [one for one in local.cloudformation.describe_stacks()["Stacks"] if one["StackName"] == cluster]
    return found[0]["StackStatus"] if found else ""


def test_a_plan_that_works_is_confirmed_and_leaves_nothing(phalanx, local, aws, write, asked):
    cluster = write(tags=FEW)
    found = asked()
    assert found["works"] and found["rights"] > 100
    assert {one["action"] for one in found["changes"]} == {"Add"}
    assert (found["launches"], found["not_checked"], found["denied"], found["left"]) == (["c5.large"], [], [], "")
    assert phalanx("plan", "--on-aws") == 0
    assert "nothing costs" in phalanx.out
    assert status_of(local, cluster) == ""
    assert phalanx("plan", "--json") == 0
    assert "on_aws" not in json.loads(phalanx.out)


@pytest.mark.parametrize("other", ["--offline", "--egress"])
def test_what_asks_nothing_is_no_choice_beside_it(phalanx, aws, write, other):
    write(tags=FEW)
    assert phalanx("plan", "--on-aws", other) == 2
    phalanx.refused("conflicting-options", other)


def test_without_credentials_it_says_so(phalanx, aws, write, monkeypatch):
    def refuse(*_: object) -> None:
        raise CloudUnreachable("no AWS credentials were found", code="no-credentials")

    write(tags=FEW)
    monkeypatch.setattr(aws.site, "facts", refuse)
    assert phalanx("plan") == 0
    assert phalanx("plan", "--on-aws") == 3
    phalanx.refused("no-credentials", "no AWS credentials were found")


def test_every_validation_is_shown_with_its_key_and_a_warning_is_none(phalanx, local, aws, write, plant, asked):
    cluster = write(tags=FEW)
    plant(NAME, PROPERTY, ADDRESS)
    shown = {one["logical_id"]: (one["key"], one["blocks"]) for one in asked(3)["validations"]}
    assert shown == {
        "RosterTable": (None, True),
        "HeadLaunchTemplate": ("type", True),
        "NatAddress": ("network", False),
    }
    assert phalanx("plan", "--on-aws") == 3
    for text in ("phalanx.yaml: type: HeadLaunchTemplate", PLACE, "already exists", "5 of 5 are in use"):
        assert text in phalanx.out
    plant(ADDRESS)
    assert asked()["works"]
    assert status_of(local, cluster) == ""


@pytest.mark.parametrize(
    "phase",
    ["create_change_set", "describe_change_set", "describe_events", "run_instances", "simulate_principal_policy"],
)
def test_ctrl_c_in_any_phase_leaves_nothing(phalanx, local, aws, write, phase):
    cluster = write(tags=FEW)
    aws.interrupted = phase
    assert phalanx("plan", "--on-aws") == 130
    assert status_of(local, cluster) == ""


def test_ctrl_c_when_the_request_was_sent_leaves_nothing(phalanx, local, aws, write, monkeypatch):
    cluster, call = write(tags=FEW), aws.call

    def interrupted(service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        answer = call(service, operation, **arguments)
        if operation == "create_change_set":
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(aws, "call", interrupted)
    assert phalanx("plan", "--on-aws") == 130
    assert status_of(local, cluster) == ""


@pytest.fixture
def left(phalanx, local, aws, write) -> Callable[..., str]:
    """Leave what a kill leaves; return the cluster's name."""

    def leave(*arguments: Any) -> str:
        cluster = write(*arguments, tags=FEW)
        aws.interrupted = "delete_stack"
        assert phalanx("plan", "--on-aws") == 130
        assert f"phalanx down -c {cluster}" in phalanx.err
        assert status_of(local, cluster) == "REVIEW_IN_PROGRESS"
        aws.interrupted = ""
        return cluster

    return leave


def test_what_is_left_is_named_by_reap_and_removed_by_down(phalanx, local, left):
    cluster = left()
    assert phalanx("plan", "--on-aws") == 6
    phalanx.refused("in-review", f"phalanx down -c {cluster}")
    assert phalanx("reap", "--json") == 1
    found = [one for one in json.loads(phalanx.out) if one["cluster"] == cluster]
    assert [one["stack"] for one in found] == ["REVIEW_IN_PROGRESS"]
    assert phalanx("down", "--yes", "-c", cluster, "--keep", "no") == 0
    assert status_of(local, cluster) == ""
    assert phalanx("reap", "--json") in (0, 1)
    assert cluster not in phalanx.out


def test_up_removes_it_first_and_says_what_a_validation_says(phalanx, local, left, plant):
    cluster = left()
    plant(NAME, PROPERTY)
    assert phalanx("up") == 4
    assert "already exists" in phalanx.err and PLACE in phalanx.err
    assert phalanx("why", "-c", cluster) == 0
    assert "already exists" in phalanx.out and PLACE in phalanx.out
    assert status_of(local, cluster) == ""


@pytest.mark.parametrize("is_reviewed", [True, False])
def test_a_stack_of_somebody_else_is_never_touched(phalanx, local, aws, write, is_reviewed):
    cluster, api = write(tags=FEW), local.cloudformation
    if is_reviewed:
        api.create_change_set(StackName=cluster, ChangeSetName="x", ChangeSetType="CREATE", TemplateBody=BODY)
    else:
        local.settled(api.create_stack(StackName=cluster, TemplateBody=BODY)["StackId"])
    before = status_of(local, cluster)
    for command in (("plan", "--on-aws"), ("up",), ("down", "--yes", "-c", cluster)):
        assert phalanx(*command) == 6
        phalanx.refused("name-taken", cluster)
    phalanx("reap", "--json")
    assert cluster not in phalanx.out
    assert status_of(local, cluster) == before
    api.delete_stack(StackName=cluster)


def test_a_large_document_goes_through_the_bucket_and_is_deleted(phalanx, local, aws, write, bucket, s3, asked):
    cluster = write(bucket)
    assert asked()["works"]
    aws.interrupted = "describe_change_set"
    assert phalanx("plan", "--on-aws") == 130
    assert keys(s3, bucket) == []
    assert status_of(local, cluster) == ""


def test_an_organisations_denial_is_shown(local, aws, write, asked):
    write(tags=FEW)
    local.context.weather.change(Forecast(1, ("explicit-deny",)))
    found = asked(3)
    local.context.weather.change(None)
    assert any("UnauthorizedOperation" in one for one in found["refused"])


@pytest.fixture
def printed(phalanx, aws, write) -> list[Any]:
    """The statements of the policy for the cluster of the file."""
    write(tags=FEW)
    assert phalanx("policy") == 0
    return statements_of(json.loads(phalanx.out))


def denial(action: str) -> dict[str, Any]:
    return {"Effect": "Deny", "Action": [action], "Resource": "*"}


def test_the_printed_policy_is_enough(local, use, printed, asked):
    use(person(local, [*printed, SIMULATOR])[1])
    found = asked()
    assert (found["denied"], found["not_checked"]) == ([], [])
    assert found["rights"] > 100


def test_a_right_that_is_missing_is_named(local, use, printed, asked):
    use(person(local, [*printed, SIMULATOR, denial("dynamodb:CreateTable")])[1])
    assert [one.partition(" ")[0] for one in asked(3)["denied"]] == ["dynamodb:CreateTable"]


@pytest.mark.parametrize("action", ["iam:SimulatePrincipalPolicy", "cloudformation:CreateChangeSet"])
def test_what_may_not_be_asked_is_not_checked(local, use, printed, asked, action):
    # The simulator is asked about all rights, also where it says that one of them is missing.
    status = 0 if action.startswith("iam") else 3
    use(person(local, [*printed, SIMULATOR, denial(action)])[1])
    found = asked(status)
    assert [action in one for one in found["not_checked"]] == [True]
    assert found["launches"] == ["c5.large"]


def test_a_failure_whose_events_may_not_be_read_has_cloudformations_reason(local, use, printed, asked, plant):
    plant(NAME)
    use(person(local, [*printed, denial("cloudformation:DescribeEvents")])[1])
    found = asked(3)
    assert any("cloudformation:DescribeEvents" in one for one in found["not_checked"])
    assert any("ResourceExistenceCheck" in one for one in found["refused"])


def test_what_can_not_be_removed_is_named_and_the_plan_does_not_pass(local, use, printed, asked, phalanx):
    use(person(local, [*printed, denial("cloudformation:DeleteStack")])[1])
    assert "`phalanx reap` names it" in asked(3)["left"]
