"""The Lambda function: fails the stack when no head can be launched."""

import json
import os
import re
import urllib.error
import urllib.request

import boto3

FAILED = "autoscaling:EC2_INSTANCE_LAUNCH_ERROR"
FAILURES = 3
REASON_CHARACTERS = 3500


def handler(event: dict, _context: object) -> None:
    """Handle Auto Scaling's notifications from SNS; they may arrive twice, late, or concern another group."""
    for record in event["Records"]:
        act(json.loads(record["Sns"]["Message"]))


def act(activity: dict) -> None:
    if activity.get("AutoScalingGroupName") == os.environ["HEAD_GROUP"] and activity.get("Event") == FAILED:
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
