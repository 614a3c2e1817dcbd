"""What AWS leaves open: the order of lists, and empty pages before the last one."""

from __future__ import annotations

from time import time

import pytest
from botocore.exceptions import ClientError

LINES = [f"line {number}" for number in range(3)]


@pytest.fixture(scope="module")
def logs(cloud):
    client = cloud.client("logs")
    client.create_log_group(logGroupName="group")
    client.create_log_stream(logGroupName="group", logStreamName="stream")
    events = [{"timestamp": int(time() * 1000), "message": line} for line in LINES]
    client.put_log_events(logGroupName="group", logStreamName="stream", logEvents=events)
    return client


def test_zones_are_not_listed_in_the_order_of_their_names(cloud):
    ec2 = cloud.client("ec2")
    listed = [[one["ZoneName"] for one in ec2.describe_availability_zones()["AvailabilityZones"]] for _ in range(2)]
    assert {*listed[0]} >= {f"us-east-1{letter}" for letter in "abcdef"}
    assert listed[0] != sorted(listed[0])
    assert listed[0] == listed[1]


def test_file_systems_are_not_listed_in_the_order_of_their_creation(cloud):
    efs = cloud.client("efs")
    made = [efs.create_file_system(CreationToken=str(number))["FileSystemId"] for number in range(8)]
    # Beside those that other tests have made.
    listed = [one["FileSystemId"] for one in efs.describe_file_systems()["FileSystems"] if one["FileSystemId"] in made]
    assert sorted(listed) == sorted(made)
    assert listed != made


@pytest.mark.parametrize(
    ("from_head", "token"), [(False, "nextBackwardToken"), (True, "nextForwardToken")], ids=["backward", "forward"]
)
def test_the_first_page_of_a_log_may_be_empty(logs, from_head, token):
    stream = {"logGroupName": "group", "logStreamName": "stream", "startFromHead": from_head}
    first = logs.get_log_events(**stream)
    assert first["events"] == []
    second = logs.get_log_events(**stream, nextToken=first[token])
    assert [event["message"] for event in second["events"]] == LINES
    third = logs.get_log_events(**stream, nextToken=second[token])
    assert third["events"] == []
    assert logs.get_log_events(**stream, nextToken=third[token])[token] == third[token]


def test_an_empty_page_is_not_the_end_of_a_search(logs):
    first = logs.filter_log_events(logGroupName="group")
    assert first["events"] == []
    pages = logs.get_paginator("filter_log_events").paginate(logGroupName="group")
    assert [event["message"] for page in pages for event in page["events"]] == LINES


def test_what_is_not_there_has_no_empty_page(logs):
    with pytest.raises(ClientError, match="ResourceNotFound"):
        logs.get_log_events(logGroupName="other", logStreamName="stream")


def test_the_length_of_an_object_is_known_without_its_content(cloud):
    s3 = cloud.client("s3")
    s3.create_bucket(Bucket="lengths")
    s3.put_object(Bucket="lengths", Key="object", Body=b"12345")
    assert s3.head_object(Bucket="lengths", Key="object")["ContentLength"] == 5
