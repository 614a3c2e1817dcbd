"""A node has the local cloud's API keep things without end: each kind has a limit for each node, and others go on.

Everything goes through the whole API, signed with a role that may do everything. What moto keeps is counted there.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
import wsgi_clients
from account import trust
from botocore.exceptions import ClientError
from fleet_fakes import REGION, name, until
from moto.cloudwatch.models import cloudwatch_backends
from moto.dynamodb.models import dynamodb_backends
from moto.logs.models import logs_backends
from moto.s3.models import s3_backends
from moto.sns.models import sns_backends
from moto.sqs.models import sqs_backends
from moto.ssm.models import ssm_backends
from stack_fakes import Stacks, stacks

from localcloud.api import quotas
from localcloud.api.admission import PEER, USER, Peer
from localcloud.cloudformation import worker
from localcloud.cloudformation.signals import Signal
from localcloud.context import Issued
from localcloud.ec2.imds import Tokens
from localcloud.iam import credentials, usage
from localcloud.iam.policy import Ask
from localcloud.messaging import queues
from localcloud.storage import tables

HOSTILE, HONEST = ("vpc-1", "10.0.1.12"), ("vpc-1", "10.0.1.13")
MIB = 1 << 20
KEEPERS: tuple[Any, ...] = (
    cloudwatch_backends,
    dynamodb_backends,
    logs_backends,
    s3_backends,
    sns_backends,
    sqs_backends,
    ssm_backends,
)
ANYTHING = '{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}'


@pytest.fixture
def cloud(tmp_path, monkeypatch) -> Iterator[Stacks]:
    monkeypatch.setenv("AWS_DISABLE_REQUEST_COMPRESSION", "true")
    with stacks(tmp_path) as made:
        yield made
    for backends in KEEPERS:
        for backend in list(backends[made.context.account].values()):
            backend.reset()


@pytest.fixture
def issued(cloud) -> Issued:
    """The credentials of a role that may do everything."""
    iam, role = cloud.client("iam"), name("role")
    made = iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust("ec2.amazonaws.com"))["Role"]
    iam.put_role_policy(RoleName=role, PolicyName="inline", PolicyDocument=ANYTHING)
    found = credentials.role_of(cloud.context.account, made["Arn"])
    assert found
    return credentials.issue(cloud.context, found, "i-1", timedelta(hours=6)).issued


@pytest.fixture
def node(cloud, issued) -> Callable[..., Any]:
    """Make a client of a service as a node has it."""

    def client(service: str, peer: Peer = HOSTILE) -> Any:
        def app(environ: dict[str, Any], start_response: Any) -> Any:
            return cloud.app({**environ, PEER: peer}, start_response)

        return wsgi_clients.client(service, REGION, cloud.context.url_host, issued, lambda: app)

    return client


def refusal(call: Callable[..., Any], times: int, **given: Any) -> str:
    """Call so many times, or until it is refused; return the error's code."""
    try:
        for number in range(times):
            call(**{key: value(number) if callable(value) else value for key, value in given.items()})
    except ClientError as error:
        return error.response["Error"]["Code"]
    return ""


def events(cloud: Stacks, group: str, stream: str) -> list[str]:
    there = logs_backends[cloud.context.account][REGION].groups[group].streams[stream]
    return [event.message for event in there.events]


@pytest.mark.parametrize(
    ("message", "times", "calls"), [("x" * (MIB // 8 - 100), 8, 20), ("x", 10_000, 5)], ids=["long", "short"]
)
def test_logs_of_a_node_push_out_its_own_oldest_ones(cloud, node, message, times, calls):
    cloud.client("logs").create_log_group(logGroupName="boot")
    now_ms = int(time.time() * 1000)
    for peer in (HOSTILE, HONEST):
        api = node("logs", peer)
        api.create_log_stream(logGroupName="boot", logStreamName=peer[1])
        batch = [{"timestamp": now_ms, "message": text} for text in ("first", *[message] * (times - 2), "last")]
        for _ in range(calls if peer == HOSTILE else 1):
            api.put_log_events(logGroupName="boot", logStreamName=peer[1], logEvents=batch)
    kept = events(cloud, "boot", HOSTILE[1])
    assert sum(map(len, kept)) + 512 * len(kept) <= 16 * MIB
    assert kept[-1] == "last"
    assert len(events(cloud, "boot", HONEST[1])) == times


def test_a_batch_of_logs_has_at_most_a_mebibyte(cloud, node):
    cloud.client("logs").create_log_group(logGroupName="boot")
    api = node("logs")
    api.create_log_stream(logGroupName="boot", logStreamName="a")
    large = [{"timestamp": int(time.time() * 1000), "message": "x" * (MIB // 8)}] * 8
    given = {"logGroupName": "boot", "logStreamName": "a", "logEvents": large}
    assert refusal(api.put_log_events, 1, **given) == "InvalidParameterException"


def test_a_node_that_fills_a_queue_is_throttled_alone_and_only_while_it_is_full(cloud, node):
    url = cloud.client("sqs").create_queue(QueueName="queue")["QueueUrl"]
    send = {"QueueUrl": url, "MessageBody": "x" * 65536, "DelaySeconds": 900}
    assert refusal(node("sqs").send_message, 1000, **send) == "RequestThrottled"
    assert refusal(node("sqs", HONEST).send_message, 10, **send) == ""
    assert refusal(cloud.client("sqs").send_message, 10, **send) == ""
    (queue,) = sqs_backends[cloud.context.account][REGION].queues.values()
    assert sum(len(message.body) for message in queue._messages) < 8 * MIB
    cloud.client("sqs").purge_queue(QueueUrl=url)
    cloud.clock.advance(2)
    assert refusal(node("sqs").send_message, 1, **send) == ""


class Looked(list[Any]):
    """A queue's messages, which count how often all are looked at."""

    times = 0

    def __iter__(self) -> Iterator[Any]:
        self.times += 1
        return super().__iter__()


def test_nobody_looks_at_all_delayed_messages_for_each_one_that_comes(cloud, node):
    """While the head waits for messages, too."""
    api = cloud.client("sqs")
    url = api.create_queue(QueueName="queue")["QueueUrl"]
    (queue,) = sqs_backends[cloud.context.account][REGION].queues.values()
    given = {"QueueUrl": url, "MessageBody": "x", "DelaySeconds": 900}
    for _ in range(queues._EXACT + 1):
        sqs_backends[cloud.context.account][REGION].send_message("queue", "x", delay_seconds=900)
    queue._messages = seen = Looked(queue._messages)
    got: list[Any] = []
    head = Thread(target=lambda: got.append(api.receive_message(QueueUrl=url, WaitTimeSeconds=20)))
    head.start()
    lock: Any = queue._messages_lock
    until(lambda: lock._waiters, "the head waits")
    assert refusal(node("sqs").send_message, 200, **given) == ""
    assert seen.times < 100
    api.send_message(QueueUrl=url, MessageBody="now")
    head.join(60)
    assert [message["Body"] for message in got[0]["Messages"]] == ["now"]


def test_handles_of_messages_are_not_kept_for_ever(cloud, monkeypatch):
    monkeypatch.setattr(queues, "_MOST_DELETED", 20)
    api = cloud.client("sqs")
    url = api.create_queue(QueueName="queue")["QueueUrl"]
    (queue,) = sqs_backends[cloud.context.account][REGION].queues.values()
    for number in range(50):
        api.send_message(QueueUrl=url, MessageBody="x")
        handle = api.receive_message(QueueUrl=url)["Messages"][0]["ReceiptHandle"]
        if number % 2:
            api.delete_message(QueueUrl=url, ReceiptHandle=handle)
        else:
            for _ in range(20):
                api.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
                handle = api.receive_message(QueueUrl=url)["Messages"][0]["ReceiptHandle"]
    assert len(queue.deleted_messages) <= 20 + queues._MOST_HANDLES + 1
    assert all(len(message.all_receipt_handles) <= queues._MOST_HANDLES + 1 for message in queue._messages)


def metrics(cloud: Stacks) -> list[Any]:
    return cloudwatch_backends[cloud.context.account][REGION].metric_data


def test_metrics_of_a_node_push_out_its_own_oldest_ones(cloud, node):
    wide = [{"Name": f"d{number}", "Value": "x"} for number in range(30)]
    data = [{"MetricName": "m", "Dimensions": wide, "Value": 1.0}] * 200
    node("cloudwatch", HONEST).put_metric_data(Namespace="honest", MetricData=data[:10])
    assert refusal(node("cloudwatch").put_metric_data, 10, Namespace="hostile", MetricData=data) == ""
    kept = [metric.namespace for metric in metrics(cloud)]
    assert kept.count("hostile") * 30 * 512 <= 16 * MIB
    assert kept.count("honest") == 10


def test_a_value_that_counts_a_million_times_is_kept_once(cloud, node):
    often = {"MetricName": "m", "Values": [1.0, 2.0], "Counts": [1e6, 1e6]}
    node("cloudwatch").put_metric_data(Namespace="hostile", MetricData=[often])
    (kept,) = metrics(cloud)
    assert (kept.sum, kept.min, kept.max, kept.sample_count) == (3e6, 1.0, 2.0, 2e6)


@pytest.fixture
def table(cloud) -> str:
    cloud.client("dynamodb").create_table(
        TableName="roster",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "item", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "item", "KeyType": "HASH"}],
    )
    return "roster"


def test_a_node_that_fills_a_table_is_throttled_alone(cloud, node, table):
    item = {"text": {"S": "x" * 390_000}}
    put = {"TableName": table, "Item": lambda number: {"item": {"S": str(number)}, **item}}
    assert refusal(node("dynamodb").put_item, 200, **put) == "ProvisionedThroughputExceededException"
    assert refusal(node("dynamodb", HONEST).put_item, 5, **put) == ""
    kept = dynamodb_backends[cloud.context.account][REGION].tables[table].items
    assert len(kept) < 100


def test_a_node_may_write_the_same_item_again_and_again(cloud, node, table):
    item = {"item": {"S": "roster"}, "text": {"S": "x" * 390_000}}
    api = node("dynamodb")
    for _ in range(200):
        cloud.clock.advance(1)
        api.put_item(TableName=table, Item=item)


def test_an_update_makes_no_item_larger_than_an_item_may_be(cloud, node, table):
    api, key = node("dynamodb"), {"item": {"S": "a"}}
    api.put_item(TableName=table, Item={**key, "list": {"L": [{"S": "x" * 1000}]}})
    update = {"TableName": table, "Key": key, "ExpressionAttributeNames": {"#l": "list"}}
    assert (
        refusal(api.update_item, 12, **update, UpdateExpression="SET #l = list_append(#l, #l)") == "ValidationException"
    )
    (kept,) = dynamodb_backends[cloud.context.account][REGION].tables[table].items.values()
    assert tables.item_bytes(kept.to_json()["Attributes"]) <= tables.ITEM_MOST_BYTES  # type: ignore[attr-defined]
    long = "SET #l = " + "list_append(#l, " * 300 + "#l" + ")" * 300
    assert refusal(api.update_item, 1, **update, UpdateExpression=long) == "ValidationException"


def test_partitions_that_nobody_reads_are_forgotten(cloud, monkeypatch):
    """A key need not be that of an item."""
    monkeypatch.setattr(tables, "_MOST_PARTITIONS", 20)
    known = tables.Tables(cloud.context)
    for number in range(100):
        cloud.clock.advance(1)
        known.is_exhausted(("roster", str(number)))
    assert len(known._buckets) <= 22


def objects(cloud: Stacks) -> int:
    (bucket,) = s3_backends[cloud.context.account]["aws"].buckets.values()
    parts = [part for upload in bucket.multiparts.values() for part in upload.parts.values()]
    versions = [version for one in dict.values(bucket.keys) for version in one]
    return sum(one.size for one in (*parts, *versions))


@pytest.mark.parametrize("by", ["put_object", "upload_part", "copy_object"])
def test_objects_of_nodes_take_an_eighth_of_this_machine_s_memory(tmp_path, monkeypatch, by, request):
    monkeypatch.setattr(quotas, "_MEMORY_BYTES", 8 * 80 * MIB)
    cloud, node = request.getfixturevalue("cloud"), request.getfixturevalue("node")
    cloud.client("s3").create_bucket(Bucket="bucket")
    api, given = node("s3"), {"Bucket": "bucket", "Key": lambda number: f"key-{number}", "Body": b"x" * (4 * MIB)}
    if by == "copy_object":
        cloud.client("s3").put_object(Bucket="bucket", Key="first", Body=given.pop("Body"))
        given["CopySource"] = "bucket/first"
    elif by == "upload_part":
        upload = api.create_multipart_upload(Bucket="bucket", Key="key")["UploadId"]
        given |= {"Key": "key", "UploadId": upload, "PartNumber": lambda number: number + 1}
    assert refusal(getattr(api, by), 40, **given) == "SlowDown"
    assert objects(cloud) <= 88 * MIB
    cloud.client("s3").put_object(Bucket="bucket", Key="the user's", Body=b"x")


@pytest.fixture
def large_things(monkeypatch):
    """Each thing that is kept counts as much as many, so that a few hundred reach what a node may keep."""
    monkeypatch.setattr(quotas, "_OBJECT_BYTES", 32 * 1024)


@pytest.mark.usefixtures("large_things")
def test_all_other_changes_of_a_node_have_a_rate(cloud, node):
    put = {"Name": lambda number: f"/p/{number}", "Value": "x" * 4000, "Type": "String"}
    assert refusal(node("ssm").put_parameter, 400, **put) == "ThrottlingException"
    assert refusal(node("ssm").get_parameters_by_path, 10, Path="/p") == ""
    assert refusal(node("ssm", HONEST).put_parameter, 1, **{**put, "Name": "/q"}) == ""
    cloud.clock.advance(3600)
    assert refusal(node("ssm").put_parameter, 1, **{**put, "Name": "/r"}) == ""


def test_a_node_has_as_many_sessions_of_roles_as_anyone_needs(cloud, node, issued, monkeypatch):
    monkeypatch.setattr(credentials, "_MOST_ASSUMED", 20)
    iam = cloud.client("iam")
    role = iam.create_role(
        RoleName="guest", AssumeRolePolicyDocument=trust("x").replace('"Service": "x"', '"AWS": "*"')
    )["Role"]["Arn"]
    api = node("sts")
    answers = [api.assume_role(RoleArn=role, RoleSessionName=f"job-{number}") for number in range(50)]
    assert len(cloud.context.issued) <= 20 + 5
    session = {**answers[-1]["Credentials"]}
    assert cloud.client_of("sts", session).get_caller_identity()["Arn"].endswith("job-49")


def test_an_instance_has_as_many_tokens_for_its_metadata_as_anyone_needs():
    tokens = Tokens()
    (first, *_, last) = [tokens.issue("i-1", 21600) for _ in range(3000)]
    other = tokens.issue("i-2", 21600)
    assert len(tokens._issued) <= 1001
    assert [tokens.remaining_s("i-1", one) is not None for one in (first, last)] == [False, True]
    assert tokens.remaining_s("i-2", other)


def test_what_a_role_uses_is_noted_so_many_times(cloud, monkeypatch):
    monkeypatch.setattr(usage, "_MOST_OF_A_ROLE", 50)
    for number in range(200):
        usage.note(cloud.context, "role", Ask("s3:GetObject", f"arn:aws:s3:::bucket/{number}"))
    usage.note(cloud.context, "another", Ask("s3:GetObject", "arn:aws:s3:::bucket/1"))
    assert len((cloud.context.state / usage.NAME).read_text().splitlines()) == 51


def test_messages_of_a_topic_are_forgotten_once_they_are_sent(cloud, node):
    topic = cloud.client("sns").create_topic(Name="topic")["TopicArn"]
    assert refusal(node("sns").publish, 10, TopicArn=topic, Message="x" * 1000) == ""
    assert not sns_backends[cloud.context.account][REGION].topics[topic].sent_notifications


def test_a_wait_handle_keeps_so_many_signals(cloud, monkeypatch):
    monkeypatch.setattr(worker, "MOST_SIGNALS", 20)
    handle = {"Type": "AWS::CloudFormation::WaitConditionHandle"}
    stack = cloud.made({"Handle": handle})
    url = cloud.physical(stack, "Handle")
    for number in range(50):
        assert cloud.engine.signal_handle(url, Signal(str(number), "SUCCESS"))
    cloud.engine.idle()
    (found,) = cloud.engine._workers.values()
    assert len(found._signals[url]) == 20


_LOG = """
import logging, sys
from pathlib import Path
from localcloud.daemon import lifecycle
lifecycle._LOG_BYTES = 4000
lifecycle._redirect(Path(sys.argv[1]))
for _ in range(500):
    logging.getLogger("localcloud").warning("x" * 50)
"""


def test_the_local_cloud_s_log_has_an_end(tmp_path):
    log = tmp_path / "localcloud.log"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", _LOG, log], check=True, timeout=120)
        assert 3000 < log.stat().st_size < 4200
    assert {path.name for path in tmp_path.iterdir()} == {"localcloud.log", "localcloud.log.old"}


@pytest.mark.usefixtures("large_things")
def test_this_machine_s_user_has_no_limit(cloud, issued, node):
    put = {"Name": lambda number: f"/p/{number}", "Value": "x" * 4000, "Type": "String"}
    assert refusal(node("ssm", USER).put_parameter, 400, **put) == ""
