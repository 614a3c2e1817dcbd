"""SNS deliveries: at once, and only where a policy allows them; a message wakes a waiting receiver."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest
from fleet_fakes import Cloud, cloud, name

from localcloud.iam import credentials
from localcloud.messaging import queues


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Iterator[Cloud]:
    with cloud(tmp_path_factory.mktemp("cloud")) as made:
        yield made


def topic_to(local: Cloud, queue_arn: str, **attributes: str) -> str:
    api = local.client("sns")
    topic = api.create_topic(Name=name("topic"))["TopicArn"]
    api.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue_arn, Attributes=attributes)
    return topic


def bodies(local: Cloud, url: str, wait_s: int = 0) -> list[str]:
    answer = local.client("sqs").receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=wait_s)
    return [message["Body"] for message in answer.get("Messages", [])]


def test_a_message_is_in_the_queue_when_publish_returns(local):
    url, arn = local.queue()
    topic = topic_to(local, arn)
    local.client("sns").publish(TopicArn=topic, Message="hello", Subject="greeting")
    (body,) = bodies(local, url)
    envelope = json.loads(body)
    assert (envelope["Type"], envelope["Message"], envelope["Subject"]) == ("Notification", "hello", "greeting")
    assert envelope["TopicArn"] == topic


def test_a_message_carries_its_sender(local):
    url, arn = local.queue()
    local.client("sns").publish(TopicArn=topic_to(local, arn), Message="hello")
    local.client("sqs").send_message(QueueUrl=url, MessageBody="hello")
    answer = local.client("sqs").receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, MessageSystemAttributeNames=["SenderId"]
    )
    senders = [message["Attributes"]["SenderId"] for message in answer["Messages"]]
    assert senders == [credentials.AWS_USER_ID, local.context.account], "of SNS, and of the one who called"


def test_raw_delivery_has_no_envelope(local):
    url, arn = local.queue()
    local.client("sns").publish(TopicArn=topic_to(local, arn, RawMessageDelivery="true"), Message="hello")
    assert bodies(local, url) == ["hello"]


def test_a_message_is_kept_as_long_as_its_queue_says(local, monkeypatch):
    url, _ = local.queue()
    api = local.client("sqs")
    api.set_queue_attributes(QueueUrl=url, Attributes={"MessageRetentionPeriod": "60"})
    api.send_message(QueueUrl=url, MessageBody="old")
    now = time.time
    monkeypatch.setattr(queues.time, "time", lambda: now() + 59)
    assert api.receive_message(QueueUrl=url, VisibilityTimeout=0)["Messages"][0]["Body"] == "old"
    monkeypatch.setattr(queues.time, "time", lambda: now() + 61)
    assert "Messages" not in api.receive_message(QueueUrl=url)


def test_a_queue_whose_policy_does_not_allow_it_gets_nothing(local):
    url, arn = local.queue(allow_sns=False)
    local.client("sns").publish(TopicArn=topic_to(local, arn), Message="hello")
    assert bodies(local, url) == []


def test_a_policy_may_name_the_topic(local):
    url, arn = local.queue(allow_sns=False)
    topic, other = topic_to(local, arn), topic_to(local, arn)
    allow = {
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": topic}},
    }
    policy = json.dumps({"Statement": allow})
    local.client("sqs").set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    local.client("sns").publish(TopicArn=other, Message="stranger")
    local.client("sns").publish(TopicArn=topic, Message="friend")
    assert [json.loads(body)["Message"] for body in bodies(local, url)] == ["friend"]


def cpu_s_while(waiter: threading.Thread, for_s: float) -> float:
    """Return the CPU time that this process uses while a thread waits."""
    before_s = time.process_time()
    waiter.join(for_s)
    return time.process_time() - before_s


def test_a_waiting_receiver_is_woken_at_once_and_uses_no_cpu_meanwhile(local):
    url, arn = local.queue()
    topic = topic_to(local, arn)
    received: list[list[str]] = []
    waiter = threading.Thread(target=lambda: received.append(bodies(local, url, wait_s=20)))
    waiter.start()
    # At first it makes its client and sends its request, which takes a slow machine longer.
    assert any(cpu_s_while(waiter, 0.5) < 0.15 for _ in range(20)), "waiting for a message is not polling"
    assert waiter.is_alive()
    local.client("sns").publish(TopicArn=topic, Message="hello")
    waiter.join(10)
    assert not waiter.is_alive(), "it would wait for 20 s"
    assert len(received[0]) == 1
