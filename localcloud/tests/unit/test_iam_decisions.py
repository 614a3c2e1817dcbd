"""Policy evaluation as AWS documents it."""

from __future__ import annotations

import pytest

from localcloud.iam.policy import Ask, Decision, decide, like

QUEUE = "arn:aws:sqs:us-east-1:123456789012:demo-queue"
SEND = Ask("sqs:SendMessage", QUEUE)


def allow(**statement) -> dict:
    return {"Effect": "Allow", "Action": "*", "Resource": "*", **statement}


def allowed(statements, ask: Ask = SEND) -> bool:
    return decide(statements if isinstance(statements, list) else [statements], ask) is Decision.ALLOWED


def test_nothing_is_allowed_unless_a_statement_says_so():
    assert decide([], SEND) is Decision.NOT_ALLOWED
    assert decide([allow()], SEND) is Decision.ALLOWED


def test_a_deny_wins_wherever_it_stands():
    deny = {"Effect": "Deny", "Action": "sqs:*", "Resource": QUEUE}
    assert decide([allow(), deny], SEND) is Decision.DENIED
    assert decide([deny, allow()], SEND) is Decision.DENIED


@pytest.mark.parametrize(
    ("statement", "verdict"),
    [
        ({"Action": "sqs:SendMessage"}, True),
        ({"Action": "SQS:sendmessage"}, True),
        ({"Action": ["sqs:Receive*", "sqs:Send*"]}, True),
        ({"Action": "sqs:ReceiveMessage"}, False),
        ({"Resource": "arn:aws:sqs:*:*:demo-?ueue"}, True),
        ({"Resource": "arn:aws:sqs:*:*:DEMO-queue"}, False),
        ({"Resource": ["arn:aws:sqs:*:*:other", QUEUE]}, True),
    ],
)
def test_actions_ignore_case_and_resources_do_not(statement, verdict):
    assert allowed(allow(**statement)) is verdict


def test_not_action_and_not_resource():
    assert allowed({"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"})
    assert not allowed({"Effect": "Allow", "NotAction": "sqs:*", "Resource": "*"})
    assert allowed({"Effect": "Allow", "Action": "*", "NotResource": "arn:aws:s3:::*"})
    assert not allowed({"Effect": "Allow", "Action": "*", "NotResource": "arn:aws:sqs:*"})


@pytest.mark.parametrize(
    ("condition", "verdict"),
    [
        ({"StringEquals": {"aws:RequestedRegion": "us-east-1"}}, True),
        ({"StringEquals": {"AWS:requestedregion": ["eu-west-1", "us-east-1"]}}, True),
        ({"StringNotEquals": {"aws:RequestedRegion": "us-east-1"}}, False),
        ({"StringLike": {"aws:RequestedRegion": "us-*"}}, True),
        ({"StringNotLike": {"aws:RequestedRegion": "us-*"}}, False),
        ({"StringEquals": {"aws:ResourceTag/none": "x"}}, False),
        ({"StringNotEquals": {"aws:ResourceTag/none": "x"}}, True),
        ({"StringEqualsIfExists": {"aws:ResourceTag/none": "x"}}, True),
        ({"Null": {"aws:ResourceTag/none": "true"}}, True),
        ({"Null": {"aws:RequestedRegion": True}}, False),
        ({"Bool": {"aws:SecureTransport": True}}, True),
        ({"ArnLike": {"aws:PrincipalArn": "arn:aws:iam::*:role/demo-*"}}, True),
        ({"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}, True),
        ({"NumericLessThan": {"size": "5"}}, True),
        ({"StringEquals": {"aws:RequestedRegion": "us-east-1"}, "Bool": {"aws:SecureTransport": "false"}}, False),
        ({"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["a", "b", "c"]}}, True),
        ({"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["a"]}}, False),
        ({"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": ["a"]}}, True),
        ({"ForAnyValue:StringEquals": {"dynamodb:LeadingKeys": ["z"]}}, False),
        ({"ForAllValues:StringEquals": {"none": ["a"]}}, True),
        ({"ForAnyValue:StringEquals": {"none": ["a"]}}, False),
        ({"StringEquals": {"aws:PrincipalArn": "arn:aws:iam::1:role/demo-${aws:RequestedRegion}"}}, True),
        ({"DateGreaterThan": {"aws:CurrentTime": "2020-01-01"}}, False),
    ],
)
def test_conditions(condition, verdict):
    keys = {
        "aws:requestedregion": ["us-east-1"],
        "aws:securetransport": ["true"],
        "aws:principalarn": ["arn:aws:iam::1:role/demo-us-east-1"],
        "aws:sourceip": ["10.1.2.3"],
        "dynamodb:leadingkeys": ["a", "b"],
        "size": ["4"],
    }
    ask = Ask("sqs:SendMessage", QUEUE, keys)
    assert allowed(allow(Condition=condition), ask) is verdict


def test_an_unknown_operator_never_grants_access():
    unknown = {"StringResembles": {"aws:RequestedRegion": "us-east-1"}}
    ask = Ask("sqs:SendMessage", QUEUE, {"aws:requestedregion": ["us-east-1"]})
    deny = {"Effect": "Deny", "Action": "*", "Resource": "*", "Condition": unknown}
    assert decide([allow(), deny], ask) is Decision.DENIED


def test_wildcards_match_newlines_and_nothing_else_is_special():
    assert like("a*z", "a/\n:z")
    assert not like("a.c", "abc")
    assert not like("[ab]", "a")


def test_resource_policies_name_the_service():
    ask = Ask("sqs:SendMessage", QUEUE, principal_service="sns.amazonaws.com")
    assert allowed(allow(Principal={"Service": "sns.amazonaws.com"}), ask)
    assert allowed(allow(Principal="*"), ask)
    assert not allowed(allow(Principal={"Service": "s3.amazonaws.com"}), ask)
    assert not allowed(allow(Principal={"AWS": "123456789012"}), ask)
