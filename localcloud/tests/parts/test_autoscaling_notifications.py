"""Auto Scaling groups' notifications to a topic, in AWS's formats."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import ALL_KINDS, REGION, Cloud, Group, cloud, received, subscribed, until

from localcloud.daemon import faults


@pytest.fixture
def local(tmp_path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        yield made


def test_notifications_have_the_shapes_that_aws_sends(local):
    topic, url = subscribed(local)
    group = Group(local)
    group.api.put_notification_configuration(
        AutoScalingGroupName=group.name, TopicARN=topic, NotificationTypes=ALL_KINDS
    )
    ((subject, test),) = received(local, url)
    assert subject == f'Auto Scaling: test notification for group "{group.name}"'
    about = {"AccountId", "AutoScalingGroupARN", "AutoScalingGroupName", "Event", "RequestId", "Service", "Time"}
    assert set(test) == about
    assert test["Event"] == "autoscaling:TEST_NOTIFICATION"

    faults.apply(local.context, {"capacity": {"c5.large": 1}})
    group.want(2)
    events = {}
    until(lambda: events.update({m["Event"]: m for _, m in received(local, url)}) or len(events) == 2)
    launch, error = events["autoscaling:EC2_INSTANCE_LAUNCH"], events["autoscaling:EC2_INSTANCE_LAUNCH_ERROR"]
    assert set(launch) == about | {
        *("ActivityId", "Cause", "Description", "Details", "EC2InstanceId", "EndTime", "Progress", "StartTime"),
        *("StatusCode", "StatusMessage"),
    }
    assert (launch["StatusCode"], launch["Progress"], launch["StatusMessage"]) == ("InProgress", 50, "")
    assert launch["EC2InstanceId"] == group.in_service()[0]
    assert launch["Details"] == {"Subnet ID": group.subnets[0], "Availability Zone": "us-east-1a"}
    assert (error["StatusCode"], error["Progress"], error["EC2InstanceId"]) == ("Failed", 100, "")
    assert error["StatusMessage"].endswith("Launching EC2 instance failed.")

    group.want(0)
    ((_, terminated),) = until(lambda: received(local, url))
    assert terminated["Event"] == "autoscaling:EC2_INSTANCE_TERMINATE"
    assert (terminated["StatusCode"], terminated["Progress"]) == ("InProgress", 50)


def test_a_topic_that_is_not_there_is_refused(local):
    group = Group(local)
    topic = f"arn:aws:sns:{REGION}:{local.context.account}:none"
    with pytest.raises(ClientError, match="Unable to publish test notification message"):
        group.api.put_notification_configuration(
            AutoScalingGroupName=group.name, TopicARN=topic, NotificationTypes=ALL_KINDS
        )
