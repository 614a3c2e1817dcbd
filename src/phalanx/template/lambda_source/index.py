"""The Lambda function: gives a launched head its Elastic IP, and fails the stack when no head can be launched."""

import json
import os
import re
import time
import urllib.error
import urllib.request
from typing import Any

import boto3
from botocore.exceptions import ClientError

LAUNCHED = "autoscaling:EC2_INSTANCE_LAUNCH"
FAILED = "autoscaling:EC2_INSTANCE_LAUNCH_ERROR"
ATTEMPTS = 90
PAUSE_S = 1
FAILURES = 3
REASON_CHARACTERS = 3500


def handler(event: dict, _context: object) -> None:
    """Handle Auto Scaling's notifications from SNS; they may arrive twice, late, or concern another group."""
    for record in event["Records"]:
        act(json.loads(record["Sns"]["Message"]))


def act(activity: dict) -> None:
    if activity.get("AutoScalingGroupName") != os.environ["HEAD_GROUP"]:
        return
    if activity.get("Event") == LAUNCHED:
        give_address(activity["EC2InstanceId"])
    elif activity.get("Event") == FAILED:
        judge_failure(activity)


def judge_failure(activity: dict) -> None:
    """Fail the stack for what no other attempt can pass, else at the third failure: Auto Scaling tries again."""
    reason = activity.get("StatusMessage") or activity.get("Description") or activity.get("Cause") or "no reason given"
    if re.search(os.environ["FINAL"], reason, re.IGNORECASE) or failures() >= FAILURES:
        signal_failure("The head could not be launched: " + reason, activity.get("ActivityId", ""))
    else:
        print("Auto Scaling tries again:", reason)


def failures() -> int:
    """Count the failed launches since one that worked, in the group's own history: a notification may come twice."""
    group = boto3.client("autoscaling").describe_scaling_activities(AutoScalingGroupName=os.environ["HEAD_GROUP"])
    codes = [activity["StatusCode"] for activity in group["Activities"]]
    since = codes.index("Successful") if "Successful" in codes else len(codes)
    return sum(code in ("Failed", "Cancelled") for code in codes[:since])


def give_address(instance_id: str) -> None:
    """Associate the address once the instance runs; leave one alone that has ended since (a late notification)."""
    ec2 = boto3.client("ec2")
    state = "unknown"
    # EC2 is eventually consistent: right after a launch it may answer that there is no such instance.
    for _ in range(ATTEMPTS):
        state = state_of(ec2, instance_id)
        if state not in ("pending", "unknown"):
            break
        time.sleep(PAUSE_S)
    if state == "running":
        associate(ec2, instance_id)
    else:
        print("no address for", instance_id, "in state", state)


def state_of(ec2: Any, instance_id: str) -> str:
    try:
        found = ec2.describe_instances(InstanceIds=[instance_id])
    except ClientError as error:
        if not error.response["Error"]["Code"].startswith("InvalidInstanceID"):
            raise
        return "unknown"
    return found["Reservations"][0]["Instances"][0]["State"]["Name"]


def associate(ec2: Any, instance_id: str) -> None:
    address = os.environ["EIP_ALLOCATION_ID"]
    try:
        ec2.associate_address(AllocationId=address, InstanceId=instance_id, AllowReassociation=True)
    except ClientError as error:
        # Without its address the head reaches nothing, so it can't report this to the stack's wait handle itself.
        signal_failure("The head " + instance_id + " could not get its address: " + str(error), instance_id)
        raise
    print("gave", address, "to", instance_id)


def signal_failure(reason: str, unique_id: str) -> None:
    """Fail the stack while it is being created; afterwards S3 or CloudFormation ignores the signal."""
    body = {"Status": "FAILURE", "UniqueId": "head-" + unique_id, "Data": "", "Reason": reason[:REASON_CHARACTERS]}
    # CloudFormation's presigned URL requires an empty Content-Type.
    request = urllib.request.Request(
        os.environ["WAIT_HANDLE"], json.dumps(body).encode(), headers={"Content-Type": ""}, method="PUT"
    )
    try:
        urllib.request.urlopen(request, timeout=20).close()
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            raise
        print("the wait handle answered", error.code)
    print(reason)
