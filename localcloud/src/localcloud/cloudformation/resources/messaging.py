"""AWS::SQS and AWS::SNS types: queues, topics, subscriptions and policies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from moto.sns.models import sns_backends
from moto.sqs.models import sqs_backends

from localcloud.api import partitions
from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources.registry import Made, Request, all_or_nothing, nothing, resource

QUEUE_ATTRIBUTES = (
    "ContentBasedDeduplication",
    "DelaySeconds",
    "FifoQueue",
    "KmsMasterKeyId",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "ReceiveMessageWaitTimeSeconds",
    "RedrivePolicy",
    "SqsManagedSseEnabled",
    "VisibilityTimeout",
)


def sqs(request: Request) -> Any:
    """Return moto's SQS backend for the stack's account and region."""
    return sqs_backends[request.context.account][request.region]


def sns(request: Request) -> Any:
    """Return moto's SNS backend for the stack's account and region."""
    return sns_backends[request.context.account][request.region]


def queue_name(url: str) -> str:
    """Return the name in a queue's URL."""
    return url.rpartition("/")[2]


def _delete_queue(request: Request, physical_id: str) -> None:
    if queue_name(physical_id) in sqs(request).queues:
        sqs(request).delete_queue(queue_name(physical_id))


@resource("AWS::SQS::Queue", _delete_queue, "Arn QueueName QueueUrl")
def _queue(request: Request) -> Made:
    properties = request.properties
    name = request.name("QueueName", 80)
    if name in sqs(request).queues:
        raise ResourceFailed(f"Queue {name} already exists (Service: Sqs, Status Code: 400)")
    queue = sqs(request).create_queue(name, tags=request.tag_map(), **attributes_of(properties))
    domain = partitions.domain(request.region)
    url = f"https://sqs.{request.region}.{domain}/{request.context.account}/{name}"
    return Made(url, {"Arn": queue.queue_arn, "QueueName": name, "QueueUrl": url})


def attributes_of(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a queue's attributes as moto takes them."""
    return {key: properties[key] for key in QUEUE_ATTRIBUTES if key in properties}


def _delete_queue_policy(request: Request, physical_id: str) -> None:  # noqa: ARG001
    forget_policies(request, request.properties["Queues"])


def forget_policies(request: Request, urls: Iterable[str]) -> None:
    """Remove the policies of queues that are still there."""
    for url in urls:
        queue = sqs(request).queues.get(queue_name(url))
        if queue is not None:
            queue.policy = None


@resource("AWS::SQS::QueuePolicy", _delete_queue_policy, "Id")
def _queue_policy(request: Request) -> Made:
    set_policies(request)
    name = request.name("", 128)
    return Made(name, {"Id": name})


def set_policies(request: Request) -> None:
    """Give the policy to its queues."""
    document = json.dumps(request.properties["PolicyDocument"])
    for url in request.properties["Queues"]:
        sqs(request).get_queue(queue_name(url)).policy = document


def _delete_topic(request: Request, physical_id: str) -> None:
    sns(request).delete_topic(physical_id)


@resource("AWS::SNS::Topic", _delete_topic, "TopicArn TopicName")
def _topic(request: Request) -> Made:
    properties, backend = request.properties, sns(request)
    name = request.name("TopicName", 256)
    attributes = {key: properties[key] for key in ("DisplayName", "KmsMasterKeyId") if key in properties}
    topic = backend.create_topic(name, attributes, request.tag_map())
    with all_or_nothing(_delete_topic, request, topic.arn):
        for subscription in properties.get("Subscription", []):
            backend.subscribe(topic.arn, subscription["Endpoint"], subscription["Protocol"])
    return Made(topic.arn, {"TopicArn": topic.arn, "TopicName": name})


def _unsubscribe(request: Request, physical_id: str) -> None:
    sns(request).unsubscribe(physical_id)


@resource("AWS::SNS::Subscription", _unsubscribe, "Arn")
def _subscription(request: Request) -> Made:
    properties = request.properties
    made = sns(request).subscribe(properties["TopicArn"], properties.get("Endpoint"), properties["Protocol"])
    with all_or_nothing(_unsubscribe, request, made.arn):
        set_attributes(request, made.arn)
    return Made(made.arn, {"Arn": made.arn})


def set_attributes(request: Request, arn: str) -> None:
    """Set what may change of a subscription."""
    properties = request.properties
    # The scope comes first: moto compiles the policy for the scope that is set at that moment.
    for key in ("FilterPolicyScope", "FilterPolicy"):
        if key in properties:
            value = properties[key]
            text = value if isinstance(value, str) else json.dumps(value)
            sns(request).set_subscription_attributes(arn, key, text)
    # moto tests this value's truth.
    is_raw = str(properties.get("RawMessageDelivery", False)).lower() == "true"
    sns(request).set_subscription_attributes(arn, "RawMessageDelivery", is_raw)


@resource("AWS::SNS::TopicPolicy", nothing, "Id")
def _topic_policy(request: Request) -> Made:
    set_topic_policies(request)
    name = request.name("", 128)
    return Made(name, {"Id": name})


def set_topic_policies(request: Request) -> None:
    """Give the policy to its topics."""
    document = json.dumps(request.properties["PolicyDocument"])
    for arn in request.properties["Topics"]:
        sns(request).set_topic_attribute(arn, "policy", document)
