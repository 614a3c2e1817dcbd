"""`down_after`: the function that looks after a stopped cluster, and removes or spares it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import boto3
import pytest

from phalanx.template.rendezvous import function_source

DAY_S = 86400
STACK = "arn:aws:cloudformation:us-east-1:123456789012:stack/demo/1"
NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=timezone.utc)


class Aws:
    """What the function asks AWS, and what it has it do."""

    def __init__(self) -> None:
        self.status, self.created = "CREATE_COMPLETE", NOW - timedelta(days=40)
        self.groups: dict[str, dict[str, Any]] = {
            name: {"AutoScalingGroupName": name, "DesiredCapacity": 0, "Instances": [], "Tags": []}
            for name in ("demo-head", "demo-workers")
        }
        self.ended: dict[str, datetime | None] = dict.fromkeys(self.groups, NOW - timedelta(days=6))
        self.neighbours = {"demo": "vpc-1"}
        self.let_in: list[str] = []
        self.deleted: list[dict[str, str]] = []
        self.sent: list[dict[str, Any]] = []

    def client(self, _service: str) -> Any:
        return self

    def describe_stacks(self, **given: Any) -> dict[str, Any]:
        assert given == {"StackName": STACK}
        return {"Stacks": [{"StackStatus": self.status, "CreationTime": self.created}]}

    def describe_auto_scaling_groups(self, **given: Any) -> dict[str, Any]:
        return {"AutoScalingGroups": [self.groups[one] for one in given["AutoScalingGroupNames"] if one in self.groups]}

    def describe_scaling_activities(self, **given: Any) -> dict[str, Any]:
        end = self.ended[given["AutoScalingGroupName"]]
        return {"Activities": [{"StatusCode": "Successful", **({"EndTime": end} if end else {})}]}

    def describe_security_groups(self, Filters: list[dict[str, Any]]) -> dict[str, Any]:
        assert Filters == [{"Name": "tag-key", "Values": ["phalanx:cluster"]}]
        pairs = [{"GroupId": f"sg-{one}"} for one in ("demo", *self.let_in)]
        rules = [{"UserIdGroupPairs": []}, {"UserIdGroupPairs": pairs}]
        return {
            "SecurityGroups": [
                {
                    "GroupId": f"sg-{name}",
                    "VpcId": vpc,
                    "IpPermissions": rules if name == "demo" else [],
                    "Tags": [{"Key": "Name", "Value": "x"}, {"Key": "phalanx:cluster", "Value": name}],
                }
                for name, vpc in self.neighbours.items()
            ]
        }

    def delete_stack(self, **given: str) -> None:
        self.deleted.append(given)

    def publish(self, **given: Any) -> None:
        self.sent.append(given)


@pytest.fixture
def aws() -> Aws:
    return Aws()


@pytest.fixture
def look(aws, monkeypatch):
    """The packed function, as at a time after NOW."""
    settings = {"DOWN_AFTER": 7 * DAY_S, "WARNING": DAY_S, "RATE": 3600, "STACK": STACK, "ROLE": "arn:role"}
    settings |= {"CLUSTER_TAG": "phalanx:cluster", "KEEP_TAG": "phalanx:keep-until"}
    for name, value in {**settings, "TOPIC": "arn:topic", "HEAD_GROUP": "demo-head", "NETWORK": "1"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(boto3, "client", aws.client)
    program: dict[str, Any] = {"__name__": "index"}
    exec(compile(function_source(removes=True), "index.py", "exec"), program)

    def run(**after: float) -> None:
        time = (NOW + timedelta(**after)).strftime("%Y-%m-%dT%H:%M:%SZ")
        program["look"]({"source": "aws.events", "time": time}, None)

    return run


def test_a_stack_is_deleted_once_no_node_has_run_for_so_long(aws, look):
    look(hours=23, minutes=59)
    assert aws.deleted == []
    look(hours=24)
    assert aws.deleted == [{"StackName": STACK, "RoleARN": "arn:role"}]


def test_the_later_group_counts_and_a_cluster_that_was_started_again_begins_anew(aws, look):
    aws.ended["demo-workers"] = NOW - timedelta(days=5)
    look(days=1)
    assert aws.deleted == []
    look(days=2)
    assert len(aws.deleted) == 1


@pytest.mark.parametrize("change", ["runs", "starts", "ends", "updates"])
def test_a_cluster_whose_nodes_run_start_or_end_is_left_alone(aws, look, change):
    if change == "runs":
        aws.groups["demo-head"]["Instances"] = [{"InstanceId": "i-1"}]
    elif change == "starts":
        aws.groups["demo-head"]["DesiredCapacity"] = 1
    elif change == "ends":
        aws.ended["demo-workers"] = None
    else:
        aws.status = "UPDATE_IN_PROGRESS"
    look(days=30)
    assert (aws.deleted, aws.sent) == ([], [])


def test_an_extension_puts_it_off(aws, look):
    kept = NOW + timedelta(days=3)
    aws.groups["demo-head"]["Tags"] = [{"Key": "phalanx:keep-until", "Value": str(int(kept.timestamp()))}]
    look(days=2, hours=23)
    assert aws.deleted == []
    look(days=3)
    assert len(aws.deleted) == 1


def test_one_mail_warns_a_day_before_whenever_the_looks_are(aws, look):
    for minute in range(-27 * 60, 23 * 60, 60):
        look(minutes=minute + 17)
    (sent,) = aws.sent
    assert sent["TopicArn"] == "arn:topic" and sent["MessageAttributes"]["kind"]["StringValue"] == "notice"
    assert "demo is stopped; its stack will be deleted at 2026-11-24 12:00 UTC without its data" in sent["Message"]
    assert aws.deleted == []


def test_a_stack_whose_network_another_cluster_uses_stays_and_a_mail_a_day_says_so(aws, look):
    """Deleting it would take the NAT gateway or the endpoints first, and only then fail."""
    aws.neighbours = {"elsewhere": "vpc-2", "demo": "vpc-1", "other": "vpc-1"}
    for hour in range(24, 72):
        look(hours=hour, minutes=17)
    assert aws.deleted == []
    assert [one["Message"] for one in aws.sent] == [
        "demo is stopped; its stack stays: another cluster uses its network or files."
    ] * 2
    del aws.neighbours["other"]
    look(hours=72)
    assert len(aws.deleted) == 1


def test_a_stack_whose_files_another_cluster_mounts_stays_in_whatever_network(aws, look, monkeypatch):
    """In a VPC of the user's, the stack's mount target serves it: its security group lets that cluster's nodes in."""
    monkeypatch.setenv("NETWORK", "")
    aws.neighbours, aws.let_in = {"demo": "vpc-1", "beside": "vpc-1", "mounts": "vpc-1"}, ["mounts", "bastion"]
    look(days=30)
    assert aws.deleted == []
    aws.let_in = ["bastion"]
    look(days=30)
    assert len(aws.deleted) == 1


def test_the_deletion_is_mailed_while_there_is_something_that_mails(aws, look):
    """What mails is deleted with the rest, whatever others hold of it (docs/aws-behaviour.md 1.36)."""
    look(days=30)
    (mail,) = aws.sent
    assert len(aws.deleted) == 1 and "phalanx ls" in mail["Message"]
    aws.status, aws.groups = "DELETE_FAILED", {}
    look(days=31)
    assert len(aws.deleted) == len(aws.sent) == 1


def test_a_mail_that_can_not_be_sent_does_not_keep_the_stack(aws, look, monkeypatch):
    def refuse(**_: Any) -> None:
        raise RuntimeError("throttled")

    monkeypatch.setattr(aws, "publish", refuse)
    with pytest.raises(RuntimeError):
        look(days=30)
    assert len(aws.deleted) == 1


def test_what_autoscaling_no_longer_remembers_was_long_ago_but_never_before_the_stack(aws, look, monkeypatch):
    monkeypatch.setattr(aws, "describe_scaling_activities", lambda **_: {"Activities": []})
    aws.created = NOW - timedelta(days=6)
    look()
    assert aws.deleted == []
    aws.created = NOW - timedelta(days=60)
    look()
    assert len(aws.deleted) == 1


def test_it_still_does_what_the_other_function_does(look, aws):
    program: dict[str, Any] = {"__name__": "index"}
    exec(compile(function_source(removes=True), "index.py", "exec"), program)
    program["look"]({"Records": []}, None)
    assert aws.deleted == []
