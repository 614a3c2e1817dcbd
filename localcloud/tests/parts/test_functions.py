"""Lambda functions as child processes: results, errors, logs, timeouts, retries, warm starts, clean ends."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator

import pytest
from fleet_fakes import Cloud, cloud, name, until
from lambda_functions import alive, function, invoke, log_lines, result

from localcloud.iam import usage
from localcloud.messaging import functions


@pytest.fixture
def local(tmp_path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        yield made


# Each process of a function has a name of its own.
NAMED = "import os\nME = os.urandom(8).hex()\ndef handler(event, context): return ME"


def test_a_handler_gets_its_event_its_context_and_its_environment(local):
    made = function(
        local,
        """
        import os
        print("loaded")
        def handler(event, context):
            print("got", event)
            return [event["x"] * 2, context.function_name, os.environ["GREETING"], os.environ["AWS_REGION"],
                    context.get_remaining_time_in_millis() > 5000, os.environ["AWS_ACCESS_KEY_ID"][:4]]
        """,
        Environment={"Variables": {"GREETING": "hello"}},
    )
    assert result(local, made, {"x": 21}) == [42, made, "hello", "us-east-1", True, "ASIA"]
    lines = log_lines(local, made)
    assert [line.split(" ")[0] for line in lines] == ["START", "loaded", "got", "END", "REPORT"]


def test_a_handler_answers_a_cloud_with_many_open_files(local, many_open_files):
    assert result(local, function(local, "def handler(event, context): return event"), 7) == 7


def test_a_second_event_finds_the_process_warm_and_other_code_does_not(local):
    made = function(local, NAMED)
    first = result(local, made)
    assert alive(made)
    assert result(local, made) == first
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("index.py", "def handler(event, context): return 'new'")
    local.client("lambda").update_function_code(FunctionName=made, ZipFile=code.getvalue())
    assert result(local, made) == "new"
    local.client("lambda").delete_function(FunctionName=made)
    until(lambda: not alive(made))


def test_an_exception_is_the_answer_and_is_in_the_log(local):
    made = function(local, "def handler(event, context): raise ValueError('no such head')")
    answer = invoke(local, made)
    assert answer["FunctionError"] == "Unhandled"
    error = json.loads(answer["Payload"].read())
    assert (error["errorType"], error["errorMessage"]) == ("ValueError", "no such head")
    assert "ValueError: no such head" in log_lines(local, made)


def test_a_late_function_does_not_bring_its_deleted_log_group_back(local):
    logs = local.client("logs")
    logs.create_log_group(logGroupName="ours")
    made = function(local, "def handler(event, context): return 1", LoggingConfig={"LogGroup": "ours"})
    assert result(local, made) == 1
    assert logs.describe_log_streams(logGroupName="ours")["logStreams"]
    logs.delete_log_group(logGroupName="ours")
    assert result(local, made) == 1
    assert logs.describe_log_groups(logGroupNamePrefix="ours")["logGroups"] == []


@pytest.mark.cluster  # AWS's shortest timeout is a second
def test_a_function_that_takes_too_long_is_killed(local):
    made = function(local, "import time\ndef handler(event, context): time.sleep(event)", Timeout=1)
    assert result(local, made, 0) is None, "only then does it have no more time to start"
    error = result(local, made, 60)
    assert error["errorMessage"].endswith("Task timed out after 1.00 seconds")
    until(lambda: not alive(made))


def test_a_process_that_dies_is_reported_and_replaced(local):
    made = function(local, "import os\ndef handler(event, context): return event or os._exit(3)")
    assert result(local, made)["errorType"] == "Runtime.ExitError"
    assert result(local, made, "again") == "again"


def test_an_asynchronous_invocation_is_tried_three_times_in_all(local):
    made = function(local, "def handler(event, context): raise RuntimeError('attempt')")
    assert invoke(local, made, InvocationType="Event")["StatusCode"] == 202

    def attempts() -> int:
        groups = local.client("logs").describe_log_groups(logGroupNamePrefix=f"/aws/lambda/{made}")["logGroups"]
        return sum(line == "RuntimeError: attempt" for line in log_lines(local, made)) if groups else 0

    until(lambda: attempts() == 1)
    until(lambda: 60.0 in local.clock.delays_s())
    local.clock.advance(60)
    until(lambda: attempts() == 2)
    until(lambda: 120.0 in local.clock.delays_s())
    local.clock.advance(120)
    until(lambda: attempts() == 3)
    assert not {60.0, 120.0} & set(local.clock.delays_s())


def test_an_idle_process_is_ended_and_a_busy_one_is_not(local):
    made = function(local, NAMED)
    first = result(local, made)
    local.clock.advance(functions.WARM_S - 1)
    assert result(local, made) == first
    local.clock.advance(1)
    assert alive(made), "it was used a second ago"
    local.clock.advance(functions.WARM_S)
    until(lambda: not alive(made))


def test_topics_invoke_functions_that_permit_it(local):
    source = "def handler(event, context): print('MESSAGE', event['Records'][0]['Sns']['Message'])"
    made = function(local, source)
    sns = local.client("sns")
    topic = sns.create_topic(Name=name("topic"))["TopicArn"]
    arn = local.client("lambda").get_function(FunctionName=made)["Configuration"]["FunctionArn"]
    wanted = json.dumps({"kind": ["wanted"]})
    attributes = {"FilterPolicy": wanted, "FilterPolicyScope": "MessageBody"}
    sns.subscribe(TopicArn=topic, Protocol="lambda", Endpoint=arn, Attributes=attributes)
    sns.publish(TopicArn=topic, Message=json.dumps({"kind": "wanted", "n": 1}))
    local.client("lambda").add_permission(
        FunctionName=made,
        StatementId="sns",
        Action="lambda:InvokeFunction",
        Principal="sns.amazonaws.com",
        SourceArn=topic,
    )
    sns.publish(TopicArn=topic, Message=json.dumps({"kind": "other", "n": 2}))
    sns.publish(TopicArn=topic, Message=json.dumps({"kind": "wanted", "n": 3}))

    def messages() -> list[str]:
        groups = local.client("logs").describe_log_groups(logGroupNamePrefix=f"/aws/lambda/{made}")["logGroups"]
        return [line for line in log_lines(local, made) if line.startswith("MESSAGE")] if groups else []

    assert until(messages) == ['MESSAGE {"kind": "wanted", "n": 3}']


# The kernel takes a moment to end so many.
CROWD = """
import os, time
def handler(event, context):
    for _ in range(100):
        if not os.fork():
            time.sleep(4711)
"""


@pytest.mark.parametrize("source", [NAMED, CROWD], ids=["one", "crowd"])
def test_stopping_the_cloud_leaves_no_process_and_no_file(local, source):
    made = function(local, source)
    result(local, made)
    local.context.stop()
    assert not alive(made)
    assert [left.name for left in local.context.state.iterdir()] == [usage.NAME]


def test_a_function_logs_with_the_rights_of_its_role(local):
    made = function(local, "def handler(event, context): print('here')")
    group = f"/aws/lambda/{made}"
    role = local.client("lambda").get_function(FunctionName=made)["Configuration"]["Role"].rpartition("/")[2]
    local.client("iam").delete_role_policy(RoleName=role, PolicyName="inline")
    result(local, made)
    assert local.client("logs").describe_log_groups(logGroupNamePrefix=group)["logGroups"] == []


@pytest.mark.cluster
def test_boto3_in_a_function_has_the_roles_rights_and_no_more(local):
    statement = {"Effect": "Allow", "Action": "ec2:DescribeInstances", "Resource": "*"}
    made = function(
        local,
        """
        import boto3
        def handler(event, context):
            ec2 = boto3.client("ec2")
            ec2.describe_instances()
            try:
                ec2.allocate_address()
            except Exception as error:
                return str(error)
        """,
        statement,
    )
    assert "is not authorized to perform: ec2:AllocateAddress" in result(local, made)
