"""A cluster that was stopped and forgotten is removed from inside the cloud, without its data (`down_after`)."""

from __future__ import annotations

import json
import time

import pytest
from local_clouds import api, wait_until_stopped
from needed_rights import not_needed, rights
from terminals import a_terminal, assert_nothing_is_left

pytestmark = pytest.mark.cluster

FORGOTTEN = "name: forgotten\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nkeep: no\ndown_after: 10s\n"
# A rule looks every minute, divided by the weather's speed, which divides all of AWS's own waits.
HURRY = ("local", "weather", "1", "--only", "packages", "--speed", "20")
REMOVED_S = 400.0


def test_a_forgotten_cluster_is_removed_without_its_data_and_one_started_in_time_is_not():
    """Nothing here asks for the deletion: the stack's own rule and function do, as on AWS."""
    with a_terminal(FORGOTTEN) as terminal:
        terminal.phalanx(*HURRY)
        terminal.phalanx("up")
        first = cluster_stack(terminal)
        terminal.on("worker2", "echo kept > /efs/kept")
        # On a slow machine the removal may be due before the next command has extended it.
        set_extension(terminal, 600)
        terminal.phalanx("extend", "2s", "--yes")
        wait_until_stopped(terminal)
        assert "is deleted in" in terminal.phalanx("extend", "1h").stdout
        assert extension(terminal) > time.time() + 600
        assert "removal   in " in terminal.phalanx("status").stdout
        time.sleep(15)
        assert cluster_stack(terminal)["StackStatus"] == "CREATE_COMPLETE", "extended"
        terminal.phalanx("up")
        assert cluster_stack(terminal)["StackId"] == first["StackId"], "started in time"
        forget_extension(terminal)
        terminal.phalanx("extend", "2s", "--yes")
        wait_until(terminal, first["StackId"], "DELETE_COMPLETE")
        (role,) = removal_roles(terminal)
        # This stack has no lease.
        assert not_needed(*rights(terminal, role)[1:], ["autoscaling:DeleteScheduledAction"]) == []
        assert "was deleted since; making it again" in terminal.phalanx("up").stderr
        assert cluster_stack(terminal)["StackId"] != first["StackId"]
        assert role not in removal_roles(terminal) != []
        assert terminal.on("worker2", "cat /efs/kept") == "kept\n"
        processes = terminal.local_cloud_processes()
        terminal.phalanx("down", "--yes")
        assert_nothing_is_left(terminal, processes)


def test_a_removal_that_others_keep_from_its_end_leaves_nothing_that_costs_and_down_finishes_it():
    """What someone else put into the VPC holds it, and nothing else: CloudFormation deletes what mails, too."""
    with a_terminal(FORGOTTEN.replace("nodes: 2\nmin: 2", "nodes: 1\nmail: me@example.com")) as terminal:
        terminal.phalanx(*HURRY)
        terminal.phalanx("up")
        stack_id = cluster_stack(terminal)["StackId"]
        ec2 = api(terminal, "ec2")
        theirs = ec2.create_network_interface(SubnetId=resources(terminal)["PrivateSubnet"][0])["NetworkInterface"]
        mails = queue_of_mails(terminal)
        terminal.phalanx("extend", "2s", "--yes")
        wait_until(terminal, stack_id, "DELETE_FAILED")
        assert "forgotten is stopped; its stack is being deleted" in next_mail(terminal, mails)
        held = {name for name, (_, status) in resources(terminal).items() if status == "DELETE_FAILED"}
        assert {"PrivateSubnet", "Vpc"} <= held and not held & {"NatGateway", "Function", "RemovalRule", "FleetTopic"}
        refused = terminal.phalanx("down", "--yes", check=False)
        assert theirs["NetworkInterfaceId"] in refused.stderr
        ec2.delete_network_interface(NetworkInterfaceId=theirs["NetworkInterfaceId"])
        processes = terminal.local_cloud_processes()
        terminal.phalanx("down", "--yes")
        assert_nothing_is_left(terminal, processes)


def resources(terminal) -> dict[str, tuple[str, str]]:
    """Return the physical ids and the statuses of what the stack has."""
    listed = api(terminal, "cloudformation").list_stack_resources(StackName="forgotten")["StackResourceSummaries"]
    there = [one for one in listed if one["ResourceStatus"] != "DELETE_COMPLETE"]
    return {one["LogicalResourceId"]: (one["PhysicalResourceId"], one["ResourceStatus"]) for one in there}


def queue_of_mails(terminal) -> str:
    """Subscribe a queue to what is mailed; return its URL."""
    sqs, sns = api(terminal, "sqs"), api(terminal, "sns")
    url = sqs.create_queue(QueueName="mails")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sending = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": arn}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [sending]})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
    only = {"FilterPolicy": json.dumps({"kind": ["notice"]}), "RawMessageDelivery": "true"}
    sns.subscribe(TopicArn=resources(terminal)["FleetTopic"][0], Protocol="sqs", Endpoint=arn, Attributes=only)
    return url


def next_mail(terminal, url: str) -> str:
    """Return the next mail but for those that warn of the removal."""
    sqs, deadline = api(terminal, "sqs"), time.monotonic() + 60
    while time.monotonic() < deadline:
        for message in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2).get("Messages", []):
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            if "being deleted" in message["Body"]:
                return message["Body"]
    raise AssertionError("no mail came")


def cluster_stack(terminal) -> dict:
    (stack,) = api(terminal, "cloudformation").describe_stacks(StackName="forgotten")["Stacks"]
    return stack


def removal_roles(terminal) -> list[str]:
    found = api(terminal, "iam").list_roles(PathPrefix="/phalanx/us-east-1/")["Roles"]
    return [role["RoleName"] for role in found]


EXTENSION = {"ResourceId": "forgotten-head", "ResourceType": "auto-scaling-group", "Key": "phalanx:keep-until"}


def set_extension(terminal, in_s: int) -> None:
    value = {"Value": str(int(time.time()) + in_s), "PropagateAtLaunch": False}
    api(terminal, "autoscaling").create_or_update_tags(Tags=[{**EXTENSION, **value}])


def extension(terminal) -> float:
    """Return until when a stopped cluster is kept, in seconds since the epoch."""
    found = api(terminal, "autoscaling").describe_tags(Filters=[{"Name": "key", "Values": [EXTENSION["Key"]]}])["Tags"]
    return float(found[0]["Value"])


def forget_extension(terminal) -> None:
    api(terminal, "autoscaling").delete_tags(Tags=[EXTENSION])


def wait_until(terminal, stack_id: str, status: str) -> None:
    deadline = time.monotonic() + REMOVED_S
    cloudformation = api(terminal, "cloudformation")
    while (found := cloudformation.describe_stacks(StackName=stack_id)["Stacks"][0]["StackStatus"]) != status:
        is_over = found in ("DELETE_COMPLETE", "DELETE_FAILED")
        assert time.monotonic() < deadline and not is_over, events_of(cloudformation, stack_id)
        time.sleep(1)


def events_of(cloudformation, stack_id: str) -> list[tuple[str, str, str]]:
    events = cloudformation.describe_stack_events(StackName=stack_id)["StackEvents"]
    return [(e["LogicalResourceId"], e["ResourceStatus"], e.get("ResourceStatusReason", "")) for e in events]
