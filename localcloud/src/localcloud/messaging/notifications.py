"""SNS deliveries: at once, to queues in memory and to functions on threads, and only where a policy allows them."""

from __future__ import annotations

import json
import logging
import uuid
from typing import Any

from moto.awslambda.utils import get_backend
from moto.core.utils import iso_8601_datetime_with_milliseconds
from moto.sns.models import Subscription, Topic
from moto.sqs.models import sqs_backends

from localcloud.api import partitions
from localcloud.context import Context
from localcloud.iam import credentials, keys, policy
from localcloud.messaging import functions

log = logging.getLogger(__name__)

PATCHED = (
    "moto.sns.models.Subscription.publish",
    "moto.sns.models.Subscription.get_post_data",
    "moto.sns.models.Topic.publish",
)

SERVICE = "sns.amazonaws.com"
_moto_publish, _moto_publish_to_all = Subscription.publish, Topic.publish


def install(_context: Context) -> None:
    """Replace moto's deliveries."""
    Subscription.publish = _publish
    Subscription.get_post_data = _envelope
    Topic.publish = _publish_once


def _publish_once(self: Topic, *arguments: Any, **named: Any) -> str:
    """Publish a message, and forget it: moto keeps all that were ever sent."""
    message_id = _moto_publish_to_all(self, *arguments, **named)
    self.sent_notifications.clear()
    return message_id


def _publish(
    self: Subscription,
    message: str,
    message_id: str,
    subject: str | None = None,
    message_attributes: dict[str, Any] | None = None,
    *options: Any,
    **named: Any,
) -> None:
    if self.protocol == "lambda":
        matcher = self._filter_policy_matcher
        if matcher is None or matcher.matches(message_attributes, message):
            _to_function(self, message, message_id, subject, message_attributes)
    elif self.protocol != "sqs" or _queue_allows(self):
        with credentials.calling(credentials.AWS_USER_ID):
            _moto_publish(self, message, message_id, subject, message_attributes, *options, **named)


def _queue_allows(subscription: Subscription) -> bool:
    """Whether the queue's policy allows the delivery; if not, AWS drops it without notice to the publisher."""
    region, name = subscription.endpoint.split(":")[3], subscription.endpoint.split(":")[-1]
    queue = sqs_backends[subscription.account_id][region].queues.get(name)
    document = json.loads(queue.policy) if queue and queue.policy else {}
    if queue is not None and not keys.may_deliver(subscription.account_id, region, queue):
        log.warning("SNS may not use the key of %s", subscription.endpoint)
        return False
    return _allowed(document, "sqs:SendMessage", subscription)


def _to_function(
    subscription: Subscription, message: str, message_id: str, subject: str | None, attributes: dict[str, Any] | None
) -> None:
    function = get_backend(subscription.account_id, subscription.endpoint.split(":")[3]).get_function_by_arn(
        subscription.endpoint
    )
    if function is None:
        log.warning("%s, a subscriber of %s, no longer exists", subscription.endpoint, subscription.topic_arn)
        return
    if _allowed({"Statement": function.policy.statements}, "lambda:InvokeFunction", subscription):
        record = _record(subscription, message, message_id, subject, attributes)
        functions.invoke_async(function, {"Records": [record]})


def _allowed(document: dict[str, Any], action: str, subscription: Subscription) -> bool:
    source = {"aws:sourcearn": [subscription.topic_arn], "aws:sourceaccount": [subscription.account_id]}
    ask = policy.Ask(action, subscription.endpoint, source, SERVICE)
    if policy.decide(policy.statements_of(document), ask) is policy.Decision.ALLOWED:
        return True
    log.warning("no policy allows %s to call %s on %s", subscription.topic_arn, action, subscription.endpoint)
    return False


def _record(
    subscription: Subscription, message: str, message_id: str, subject: str | None, attributes: dict[str, Any] | None
) -> dict[str, Any]:
    """Build one element of the event's Records (docs/aws-behaviour.md 3.1)."""
    sns = _envelope(subscription, message, message_id, subject, attributes)
    sns["SigningCertUrl"] = sns.pop("SigningCertURL")
    sns["UnsubscribeUrl"] = sns.pop("UnsubscribeURL")
    return {
        "EventVersion": "1.0",
        "EventSubscriptionArn": subscription.arn,
        "EventSource": "aws:sns",
        "Sns": {"Subject": None, "MessageAttributes": {}} | sns,
    }


def _envelope(
    self: Subscription,
    message: str,
    message_id: str,
    subject: str | None,
    message_attributes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Build what an HTTP or SQS subscriber receives, without a signature.

    moto makes an RSA key and a certificate for each subscription, which takes longer than a node's boot, and no
    subscriber here checks the signature.
    """
    region = self.topic.sns_backend.region_name
    host = f"https://sns.{region}.{partitions.domain(region)}"
    envelope: dict[str, Any] = {
        "Type": "Notification",
        "MessageId": message_id,
        "TopicArn": self.topic.arn,
        "Message": message,
        "Timestamp": iso_8601_datetime_with_milliseconds(),
        "SignatureVersion": "1",
        "Signature": "",
        "SigningCertURL": f"{host}/SimpleNotificationService-{uuid.UUID(int=0).hex}.pem",
        "UnsubscribeURL": f"{host}/?Action=Unsubscribe&SubscriptionArn={self.arn}",
    }
    if subject:
        envelope["Subject"] = subject
    if message_attributes:
        envelope["MessageAttributes"] = message_attributes
    return envelope
