"""The rest of the Lambda function, for `down_after`: warns of the end of a stopped cluster, and has it deleted."""

import os
from datetime import datetime, timezone

import boto3

SETTINGS = os.environ
KEEP_TAG = "phalanx:keep-until"


def look(event: dict, context: object) -> None:
    """Handle the events of a rule, at its rate. The time of an event says which look this is, late or not."""
    if "Records" in event:
        # It is of index.py, to which this is appended.
        handler(event, context)  # noqa: F821 # pyright: ignore[reportUndefinedVariable]
        return
    now = datetime.strptime(event["time"], "%Y-%m-%dT%H:%M:%S%z").timestamp()
    stacks = boto3.client("cloudformation")
    stack = stacks.describe_stacks(StackName=SETTINGS["STACK"])["Stacks"][0]
    left = (due := end(stack)) - now - int(SETTINGS["WARNING"])
    if due and due <= now:
        print("deleting the stack")
        stacks.delete_stack(StackName=SETTINGS["STACK"], RoleARN=SETTINGS["ROLE"])
    elif due and -int(SETTINGS["RATE"]) < left <= 0:
        warn(due)


def end(stack: dict) -> float:
    """Return when the stack is to be deleted; 0 while it changes, and while a node runs, starts or ends."""
    scaling = boto3.client("autoscaling")
    names = [SETTINGS["HEAD_GROUP"], SETTINGS["HEAD_GROUP"][:-4] + "workers"]
    groups = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=names)["AutoScalingGroups"]
    is_changing = not stack["StackStatus"].endswith("_COMPLETE")
    if is_changing or any(group["DesiredCapacity"] or group["Instances"] for group in groups):
        return 0
    moments = [stack.get("LastUpdatedTime") or stack["CreationTime"]]
    for name in names:
        for activity in scaling.describe_scaling_activities(AutoScalingGroupName=name, MaxRecords=1)["Activities"]:
            if "EndTime" not in activity:
                return 0
            moments.append(activity["EndTime"])
    kept = [float(tag["Value"]) for group in groups for tag in group["Tags"] if tag["Key"] == KEEP_TAG]
    return max(max(moments).timestamp() + int(SETTINGS["DOWN_AFTER"]), *kept, 0)


def warn(due: float) -> None:
    """Mail a warning to those who subscribed."""
    when = datetime.fromtimestamp(due, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    cluster = SETTINGS["STACK"].split("/")[1]
    boto3.client("sns").publish(
        TopicArn=SETTINGS["TOPIC"],
        Subject="phalanx: cluster " + cluster,
        Message=cluster + " is stopped; its stack will be deleted at " + when + ", its data in EFS not. "
        "`phalanx extend` and `phalanx up` prevent that.",
        MessageAttributes={"kind": {"DataType": "String", "StringValue": "notice"}},
    )
