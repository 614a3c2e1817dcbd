"""The four services that a node uses: its queue, the roster table, the workers' Auto Scaling group, the boot log."""

from __future__ import annotations

import base64
import calendar
import json
import time
from typing import Any, NamedTuple

from phalanx.node.aws_client import Aws, AwsError
from phalanx.node.workers_group import workers_of

_TEN = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["SenderId"]}


class Queue:
    """The head's SQS queue: all nodes send, only the head receives."""

    def __init__(self, aws: Aws, url: str) -> None:
        self._aws, self._url = aws, url

    def send(self, message: dict[str, Any]) -> None:
        self._call("SendMessage", MessageBody=json.dumps(message))

    def receive(self, wait_s: int) -> list[dict[str, Any]]:
        """Return up to 200 raw messages with their senders; wait at most `wait_s` (0 to 20) for the first.

        A call returns 10, and hundreds of nodes say hello at the same time: what they cause is done once for all.
        """
        messages = batch = self._receive(wait_s)
        while len(batch) == 10 and len(messages) < 200:
            batch = self._receive(0)
            messages = messages + batch
        return messages

    def _receive(self, wait_s: int) -> list[dict[str, Any]]:
        return self._call("ReceiveMessage", wait_s + 10, **_TEN, WaitTimeSeconds=wait_s).get("Messages") or []

    def delete(self, messages: list[dict[str, Any]]) -> None:
        """Delete received messages. One that can't be deleted is received again, which is harmless."""
        entries = [{"Id": str(i), "ReceiptHandle": m["ReceiptHandle"]} for i, m in enumerate(messages)]
        for start in range(0, len(entries), 10):
            self._call("DeleteMessageBatch", Entries=entries[start : start + 10])

    def _call(self, action: str, timeout_s: float = 10, **payload: Any) -> dict[str, Any]:
        return self._aws.json("sqs", f"AmazonSQS.{action}", {"QueueUrl": self._url, **payload}, timeout_s)


# Equal items, so that a thousand workers do not read from one partition at the same moment.
ROSTERS = ("roster", "roster#2", "roster#3")


class Table:
    """The roster table in DynamoDB. Items are flat, with strings, bytes, integers and booleans."""

    def __init__(self, aws: Aws, name: str) -> None:
        self._aws, self._name = aws, name
        self.epoch = ""

    def get(self, item: str, consistent: bool = True) -> dict[str, Any]:
        """Return the item's attributes, {} if it does not exist. Eventually consistent, at half the price."""
        answer = self._call("GetItem", Key={"item": {"S": item}}, ConsistentRead=consistent)
        return {name: plain(value) for name, value in answer.get("Item", {}).items()}

    def get_together(self, *items: str) -> list[dict[str, Any]]:
        """Return each item's attributes, by one call; {} for what does not exist, or what DynamoDB had to leave out.

        Eventually consistent. A partition that is too busy is left out of the answer (docs/aws-behaviour.md 8).
        """
        wish = {"RequestItems": {self._name: {"Keys": [{"item": {"S": item}} for item in items]}}}
        answer = self._aws.json("dynamodb", "DynamoDB_20120810.BatchGetItem", wish)
        found = {one["item"]["S"]: one for one in answer["Responses"].get(self._name, [])}
        return [{name: plain(value) for name, value in found.get(item, {}).items()} for item in items]

    def note(self, item: str, **attributes: Any) -> None:
        """Write an item on which no decision depends, without checking which node is the head."""
        self._call("PutItem", Item=_item(item, attributes))

    def put(self, item: str, **attributes: Any) -> None:
        """Write an item as head. Raises SystemExit if a later head (a greater `epoch`) has written it."""
        try:
            self._call(
                "PutItem",
                Item=_item(item, {**attributes, "epoch": self.epoch}),
                ConditionExpression="attribute_not_exists(epoch) OR epoch <= :e",
                ExpressionAttributeValues={":e": {"S": self.epoch}},
            )
        except AwsError as error:
            if error.code == "ConditionalCheckFailedException":
                raise SystemExit(f"phalanx: another machine is head: {item} is not ours to write") from error
            raise

    def _call(self, action: str, **payload: Any) -> dict[str, Any]:
        return self._aws.json("dynamodb", f"DynamoDB_20120810.{action}", {"TableName": self._name, **payload})


def _item(name: str, attributes: dict[str, Any]) -> dict[str, Any]:
    return {key: _typed(value) for key, value in {**attributes, "item": name}.items()}


def plain(value: dict[str, Any]) -> Any:
    """Return the value of an attribute."""
    (kind, content), *_ = value.items()
    if kind == "B":
        return base64.b64decode(content)
    return int(content) if kind == "N" else content


def _typed(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, bytes):
        return {"B": base64.b64encode(value).decode()}
    return {"N": str(value)} if isinstance(value, int) else {"S": value}


class Refusal(NamedTuple):
    """A failed launch of Auto Scaling; one attempt has one cause, however many instances it was for."""

    cause: str
    message: str


class Reading(NamedTuple):
    """The workers' group at one moment. `instances`: ids of all that exist or are being launched."""

    instances: tuple[str, ...]
    refusals: tuple[Refusal, ...]


_INSTANCES = ".//{*}instancesSet/{*}item"


class Fleet:
    """The workers' Auto Scaling group, and its instances in EC2.

    `administrator` is the service's own account on all machines, which reaches itself on the others. `address_file` is
    where the service's programs look for the workers' addresses.
    """

    administrator = ""
    address_file = ""

    def __init__(self, aws: Aws, group: str) -> None:
        self._aws, self._group = aws, group

    def request(self, nodes: int) -> None:
        """Request this many nodes, the head included, up to the group's MaxSize, which only the user may change."""
        self._set_size(workers_of(nodes))

    def stop(self) -> None:
        """End all machines of the group."""
        self._set_size(0)

    def _set_size(self, machines: int) -> None:
        self._call("SetDesiredCapacity", AutoScalingGroupName=self._group, DesiredCapacity=machines)

    def take_address(self, allocation: str, instance_id: str) -> None:
        """Move the Elastic IP to an instance; its earlier holder loses it."""
        asked = {"AllocationId": allocation, "InstanceId": instance_id, "AllowReassociation": "true"}
        self._aws.query("ec2", "2016-11-15", "AssociateAddress", asked)

    def terminate(self, instance_id: str, replaced: bool) -> None:
        """Terminate an instance and, unless it is `replaced`, lower the desired capacity. No error if it is gone."""
        fewer = "false" if replaced else "true"
        try:
            self._call(
                "TerminateInstanceInAutoScalingGroup", InstanceId=instance_id, ShouldDecrementDesiredCapacity=fewer
            )
        except AwsError as error:
            if error.code != "ValidationError":
                raise

    def read(self) -> Reading:
        """Read the group and its failed launches, newest first (docs/aws-behaviour.md 3.5, 3.8)."""
        group = self._call("DescribeAutoScalingGroups", **{"AutoScalingGroupNames.member.1": self._group})
        instances = [
            i.findtext("{*}InstanceId", "")
            for i in group.iterfind(".//{*}Instances/{*}member")
            if not i.findtext("{*}LifecycleState", "").startswith(("Terminat", "Detach"))
        ]
        desired = int(group.findtext(".//{*}DesiredCapacity") or 0)
        return Reading(tuple(instances), self._refusals() if len(instances) < desired else ())

    def lease_end(self) -> float:
        """Return when a scheduled action lowers the group to 0 nodes, in seconds since the epoch; 0 if none does."""
        answer = self._call("DescribeScheduledActions", AutoScalingGroupName=self._group)
        actions = answer.iterfind(".//{*}ScheduledUpdateGroupActions/{*}member")
        return min((_seconds(a.findtext("{*}StartTime", "")) for a in actions), default=0.0)

    def block_end(self, reservation: str) -> float:
        """Return when a Capacity Block ends, in seconds since the epoch; 0 if it has no end."""
        asked = {"CapacityReservationId.1": reservation}
        answer = _xml(self._aws.query("ec2", "2016-11-15", "DescribeCapacityReservations", asked))
        end = answer.findtext(".//{*}endDate", "")
        return _seconds(end) if end else 0.0

    def settings(self, stack_id: str) -> tuple[int, str]:
        """Return the stack's parameter Idle, in seconds, and the topic for mails, "" if nobody wanted any."""
        answer = _xml(self._aws.query("cloudformation", "2010-05-15", "DescribeStacks", {"StackName": stack_id}))
        given = {p.findtext("{*}ParameterKey"): p.findtext("{*}ParameterValue") for p in _all(answer, "Parameters")}
        made = {o.findtext("{*}OutputKey"): o.findtext("{*}OutputValue", "") for o in _all(answer, "Outputs")}
        return int(given.get("Idle") or 0), made.get("FleetTopic", "") if given.get("Mail") else ""

    def publish(self, topic: str, subject: str, text: str) -> None:
        """Notify the subscribers to notices. The attribute distinguishes the message from Auto Scaling's."""
        kind = {"Name": "kind", "Value.DataType": "String", "Value.StringValue": "notice"}
        attributes = {f"MessageAttributes.entry.1.{name}": value for name, value in kind.items()}
        message = {"TopicArn": topic, "Subject": subject, "Message": text, **attributes}
        self._aws.query("sns", "2010-03-31", "Publish", message)

    def addresses(self, instance_ids: list[str]) -> dict[str, str]:
        """Return id → private address of those instances that EC2 already knows."""
        found = self._describe(instance_ids, "privateIpAddress")
        return {instance_id: address for instance_id, address in found.items() if address}

    def ended(self, instance_ids: list[str]) -> set[str]:
        """Return those instances that EC2 reports as ended, or as ending."""
        found = self._describe(instance_ids, "instanceState/{*}name")
        return {instance_id for instance_id, state in found.items() if state not in ("pending", "running")}

    def _describe(self, instance_ids: list[str], element: str) -> dict[str, str]:
        """Return id → text of an element of the instance's description, of those that EC2 knows."""
        asked = {f"Filter.1.Value.{n}": i for n, i in enumerate(instance_ids, 1)}
        parameters = {"Filter.1.Name": "instance-id", **asked}
        answer = _xml(self._aws.query("ec2", "2016-11-15", "DescribeInstances", parameters))
        return {i.findtext("{*}instanceId"): i.findtext("{*}" + element, "") for i in answer.iterfind(_INSTANCES)}

    def _refusals(self) -> tuple[Refusal, ...]:
        answer = self._call("DescribeScalingActivities", AutoScalingGroupName=self._group)
        found = []
        for activity in answer.iterfind(".//{*}Activities/{*}member"):
            status = activity.findtext("{*}StatusCode")
            if status == "Successful":
                break  # earlier failures no longer matter
            if status in ("Failed", "Cancelled"):
                found.append(Refusal(activity.findtext("{*}Cause", ""), _words(activity)))
        return tuple(found)

    def _call(self, action: str, **parameters: Any) -> Any:
        return _xml(self._aws.query("autoscaling", "2011-01-01", action, parameters))


def _xml(text: bytes) -> Any:
    from xml.etree import ElementTree  # 10 ms, which only the head needs

    return ElementTree.fromstring(text)


def _all(answer: Any, listed: str) -> Any:
    return answer.iterfind(f".//{{*}}{listed}/{{*}}member")


def _seconds(moment: str) -> float:
    """Return a time such as 2026-11-22T16:00:00Z or …00.000Z in seconds since the epoch."""
    return calendar.timegm(time.strptime(moment[:19], "%Y-%m-%dT%H:%M:%S"))


def _words(activity: Any) -> str:
    """Return why a launch failed, as Auto Scaling reports it."""
    return activity.findtext("{*}StatusMessage") or activity.findtext("{*}Description") or "no reason given"


class LogStream:
    """A stream of the cluster's log group."""

    def __init__(self, aws: Aws, group: str, stream: str) -> None:
        self._aws, self._names = aws, {"logGroupName": group, "logStreamName": stream}
        self._made = False

    def put(self, events: list[tuple[int, str]]) -> None:
        """Append lines, each with its time in milliseconds, oldest first."""
        if not self._made:
            self._make()
        lines = [{"timestamp": at, "message": text or " "} for at, text in events]
        self._aws.json("logs", "Logs_20140328.PutLogEvents", {**self._names, "logEvents": lines})

    def _make(self) -> None:
        try:
            self._aws.json("logs", "Logs_20140328.CreateLogStream", self._names)
        except AwsError as error:
            if error.code != "ResourceAlreadyExistsException":
                raise
        self._made = True
