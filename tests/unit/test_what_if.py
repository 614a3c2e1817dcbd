"""What `plan --on-aws` asks EC2 and IAM, and how it reads what CloudFormation's validations say."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from plans import EMR, PLANS, default_document

from localcloud.iam.policy import Ask, Decision, decide
from phalanx.aws import change_sets, what_if
from phalanx.aws.aws import Aws
from phalanx.aws.model import StackState
from phalanx.aws.refusals import translate
from phalanx.errors import CloudError
from phalanx.template.document import build
from phalanx.template.origins import key_of
from phalanx.template.policy import policy

STACK = "arn:aws:cloudformation:us-east-1:1:stack/demo/1"
NO_CHANGES = "The submitted information didn't contain changes."
EVENT = {
    "EventType": "VALIDATION_ERROR",
    "LogicalResourceId": "Vpc",
    "ResourceType": "AWS::EC2::VPC",
    "ValidationName": "PROPERTY_VALIDATION",
    "ValidationStatusReason": "Required property\n [CidrBlock] not found",
    "ValidationPath": "/Resources/Vpc/Properties",
    "ValidationFailureMode": "FAIL",
}


def refused(code: str, operation: str, status: int = 400) -> CloudError:
    response = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = ClientError(response, operation)  # type: ignore[arg-type]
    made = translate(error, f"cloudformation:{operation}", "AWS")
    made.__cause__ = error
    return made


class Scripted(Aws):
    """Answers each operation with the next of its answers, and with the last one from then on."""

    poll_interval_s = 2.0

    def __init__(self, **answers: list[Any]) -> None:
        super().__init__("us-east-1")
        self.answers, self.asked = answers, []

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        self.asked.append((operation, arguments))
        script = self.answers[operation]
        answer = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def names(self) -> list[str]:
        return [operation for operation, _ in self.asked]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let time pass by sleeping only; return the pauses."""
    now, pauses = [1000.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    return pauses


def in_review(status: str = "REVIEW_IN_PROGRESS") -> dict[str, Any]:
    moment = type("Moment", (), {"timestamp": lambda _: 1.0})()
    return {"Stacks": [{"StackName": "demo", "StackId": STACK, "StackStatus": status, "CreationTime": moment}]}


GONE = ClientError({"Error": {"Code": "ValidationError", "Message": "Stack demo does not exist"}}, "DescribeStacks")


def gone() -> CloudError:
    made = translate(GONE, "cloudformation:DescribeStacks", "AWS")
    made.__cause__ = GONE
    return made


def proposed(aws: Aws) -> change_sets.Proposed:
    made = change_sets.of_new_stack(aws, "demo")
    made.request("{}", {}, (), {})
    return made


MADE = {"Id": "arn:changes", "StackId": STACK}


def test_a_change_set_that_is_not_found_at_first_is_waited_for(clock):
    missing = refused("ChangeSetNotFound", "DescribeChangeSet")
    pending = {"Status": "CREATE_IN_PROGRESS"}
    aws = Scripted(
        create_change_set=[MADE], describe_change_set=[missing, missing, *[pending] * 30, {"Status": "CREATE_COMPLETE"}]
    )
    assert proposed(aws).failure == ""
    assert sum(clock) >= 60


def test_one_that_somebody_deletes_is_not_waited_for_forever(clock):
    aws = Scripted(create_change_set=[MADE], describe_change_set=[refused("ChangeSetNotFound", "DescribeChangeSet")])
    with pytest.raises(CloudError, match="another command"):
        proposed(aws)
    assert sum(clock) < 60


def test_the_empty_stack_is_removed_by_its_id_and_only_while_it_is_in_review(clock):
    aws = Scripted(
        create_change_set=[MADE],
        describe_change_set=[{"Status": "CREATE_COMPLETE"}],
        list_change_sets=[{"Summaries": []}],
        describe_stacks=[gone(), gone(), in_review(), in_review("DELETE_COMPLETE")],
        delete_stack=[refused("Throttling", "DeleteStack"), {}],
    )
    aws.answers["describe_stacks"].insert(3, in_review())
    proposed(aws).remove()
    assert [one for one in aws.asked if one[0] == "delete_stack"] == [("delete_stack", {"StackName": STACK})] * 2
    executed = Scripted(**{**aws.answers, "describe_stacks": [in_review("CREATE_IN_PROGRESS")]})
    proposed(executed).remove()
    assert "delete_stack" not in executed.names()


def test_with_somebody_elses_change_set_the_stack_stays(clock):
    aws = Scripted(
        create_change_set=[MADE],
        describe_change_set=[{"Status": "CREATE_COMPLETE"}],
        describe_stacks=[in_review()],
        delete_change_set=[refused("InvalidChangeSetStatusException", "DeleteChangeSet"), {}],
    )
    made = proposed(aws)
    name = aws.asked[0][1]["ChangeSetName"]
    mine = {"ChangeSetName": name, "ChangeSetId": "arn:changes"}
    aws.answers["list_change_sets"] = [{"Summaries": [{"ChangeSetName": "theirs", "ChangeSetId": "arn:theirs"}, mine]}]
    made.remove()
    deleted = [given["ChangeSetName"] for operation, given in aws.asked if operation == "delete_change_set"]
    assert deleted == ["arn:changes"] * 2
    assert "delete_stack" not in aws.names()


@pytest.mark.parametrize("was_made", [True, False])
def test_what_an_interrupted_request_may_have_made_is_looked_for_by_name(clock, was_made):
    found = {"ChangeSetId": "arn:changes", "StackId": STACK, "Status": "CREATE_PENDING"}
    aws = Scripted(
        create_change_set=[KeyboardInterrupt()],
        describe_change_set=[found if was_made else refused("ChangeSetNotFound", "DescribeChangeSet")],
        list_change_sets=[{"Summaries": []}],
        describe_stacks=[in_review(), in_review("DELETE_COMPLETE")],
        delete_stack=[{}],
    )
    made = change_sets.of_new_stack(aws, "demo")
    with pytest.raises(KeyboardInterrupt):
        made.request("{}", {}, (), {})
    made.remove()
    assert ("delete_stack" in aws.names()) == was_made


def test_nothing_is_looked_for_after_a_refusal(clock):
    aws = Scripted(create_change_set=[refused("ValidationError", "CreateChangeSet")])
    made = change_sets.of_new_stack(aws, "demo")
    with pytest.raises(CloudError):
        made.request("{}", {}, (), {})
    made.remove()
    assert aws.names() == ["create_change_set"]


STATE = StackState("demo", STACK, "CREATE_COMPLETE")


def test_an_update_that_validations_stop_says_what_they_say_and_leaves_no_change_set(clock):
    aws = Scripted(
        create_change_set=[MADE],
        describe_change_set=[{"Status": "FAILED", "StatusReason": "The following hook(s)/validation failed: […]"}],
        describe_events=[{"OperationEvents": [EVENT, {**EVENT, "LogicalResourceId": "Other"}]}],
        delete_change_set=[{}],
    )
    with pytest.raises(CloudError) as failure:
        change_sets.review(aws, STATE, "{}", {}, ())
    assert failure.value.code == "not-compared"
    assert failure.value.message.count("Required property [CidrBlock] not found") == 2
    assert aws.names()[-1] == "delete_change_set"


def test_an_update_without_a_change_leaves_no_change_set(clock):
    aws = Scripted(
        create_change_set=[MADE],
        describe_change_set=[{"Status": "FAILED", "StatusReason": NO_CHANGES}],
        delete_change_set=[{}],
    )
    assert change_sets.review(aws, STATE, "{}", {}, ()) is None
    assert aws.names()[-1] == "delete_change_set"


def test_events_are_read_with_their_path_and_mode_each_once():
    hook = {
        "EventType": "HOOK_INVOCATION_ERROR",
        "HookType": "Company::Tags",
        "HookStatusReason": "no tag",
        "HookFailureMode": "FAIL",
    }
    progress = {"EventType": "PROGRESS_EVENT", "LogicalResourceId": "Vpc"}
    warning = {**EVENT, "ValidationFailureMode": "WARN", "ValidationPath": "", "ValidationStatusReason": "quota"}
    aws = Scripted(describe_events=[{"OperationEvents": [progress, EVENT, EVENT, hook, warning]}])
    found = change_sets.validations(aws, ChangeSetName="arn:changes")
    assert [(one.logical_id, one.path, one.blocks) for one in found] == [
        ("Vpc", "/Resources/Vpc/Properties", True),
        ("", "", True),
        ("Vpc", "", False),
    ]
    assert str(found[1]) == "no tag"


@pytest.mark.parametrize("name", [*PLANS, "emr"])
def test_whoever_has_the_printed_policy_is_denied_nothing(name):
    statements = policy(build(EMR if name == "emr" else PLANS[name]).to_dict(), "demo")["Statement"]
    asked = list(what_if.questions(statements, "eu-west-1", "123456789012"))
    wrong = [
        (action, one.resource)
        for one in asked
        for action in one.actions
        if decide(statements, Ask(action, one.resource, {key.lower(): [value] for key, value in one.keys}))
        is not Decision.ALLOWED
    ]
    assert wrong == []
    # Each is a call, which takes IAM a tenth of a second.
    assert len(asked) <= 50
    assert not [one.resource for one in asked if "*" in one.resource and one.resource != "*"]


def simulated(*results: dict[str, Any], who: str) -> Scripted:
    identity = {"Arn": who, "Account": "123456789012"}
    role = {"Role": {"Arn": "arn:aws:iam::123456789012:role/team/person"}}
    return Scripted(
        get_caller_identity=[identity],
        get_role=[role],
        simulate_principal_policy=[{"EvaluationResults": list(results), "IsTruncated": False}],
    )


POLICY = {"Statement": [{"Effect": "Allow", "Action": ["sqs:CreateQueue"], "Resource": ["arn:*:sqs:*:*:demo*"]}]}
ALLOWED = {"EvalActionName": "sqs:CreateQueue", "EvalResourceName": "arn:x", "EvalDecision": "allowed"}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (ALLOWED, []),
        ({**ALLOWED, "EvalDecision": "implicitDeny"}, ["sqs:CreateQueue on arn:x"]),
        (
            {**ALLOWED, "OrganizationsDecisionDetail": {"AllowedByOrganizations": False}},
            ["sqs:CreateQueue on arn:x, by the organisation's policy"],
        ),
    ],
)
def test_a_session_is_simulated_by_its_role_with_the_roles_path(result, said):
    aws = simulated(result, who="arn:aws:sts::123456789012:assumed-role/person/me")
    count, denied = what_if.denied(aws, POLICY)
    assert (count, denied) == (1, said)
    (asked,) = [given for name, given in aws.asked if name == "simulate_principal_policy"]
    assert asked["PolicySourceArn"] == "arn:aws:iam::123456789012:role/team/person"
    assert asked["ResourceArns"] == ["arn:aws:sqs:us-east-1:123456789012:demoexample"]


def test_the_root_user_is_not_checked():
    with pytest.raises(what_if.NotCheckedError):
        what_if.denied(simulated(ALLOWED, who="arn:aws:iam::123456789012:root"), POLICY)


@pytest.mark.parametrize(
    ("code", "status", "outcome"),
    [
        ("DryRunOperation", 412, ""),
        ("UnauthorizedOperation", 403, "UnauthorizedOperation: "),
        ("VPCIdNotSpecified", 400, what_if.NotCheckedError),
        ("RequestLimitExceeded", 503, what_if.NotCheckedError),
        ("InternalError", 500, what_if.NotCheckedError),
    ],
)
def test_a_dry_run_is_read(code, status, outcome):
    aws = Scripted(run_instances=[refused(code, "RunInstances", status)])
    look: Callable[[], str] = lambda: what_if.launch(aws, InstanceType="c5.large")  # noqa: E731
    if isinstance(outcome, str):
        assert look().startswith(outcome) and bool(look()) == bool(outcome)
    else:
        with pytest.raises(outcome):
            look()
    assert all(given["DryRun"] for _, given in aws.asked)


@pytest.mark.parametrize(
    ("logical_id", "path", "key"),
    [
        ("HeadLaunchTemplate", "/Resources/HeadLaunchTemplate/Properties/LaunchTemplateData/InstanceType", "type"),
        ("HeadLaunchTemplate", "/Resources/HeadLaunchTemplate/Properties/LaunchTemplateData/ImageId", "image"),
        ("HeadLaunchTemplate", "/Resources/HeadLaunchTemplate", ""),
        ("NatGateway", "/Resources/NatGateway/Properties/Nothing/7", "network"),
        ("MailSubscription", "", "mail"),
        ("RosterTable", "/Resources/RosterTable/Properties", ""),
        ("Unknown", "/Resources/Unknown/Properties/X", ""),
    ],
)
def test_the_key_behind_a_place_in_the_document_is_named(logical_id, path, key):
    assert key_of(default_document(), logical_id, path) == key
