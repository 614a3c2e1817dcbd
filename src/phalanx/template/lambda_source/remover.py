"""The rest of the Lambda function, for `down_after`: warns of the end of a stopped cluster, and has it deleted."""

import os
import time
from datetime import datetime

import boto3

SETTINGS = os.environ
OWN_STACK = SETTINGS["STACK"]
PERIOD_S = int(SETTINGS["RATE"])
CLUSTER = OWN_STACK.split("/")[1]
CLUSTER_TAG, KEEP_TAG = SETTINGS["CLUSTER_TAG"], SETTINGS["KEEP_TAG"]
CLIENT = boto3.client


def look(event: dict, context: object) -> None:
    """Handle the events of a rule, at its rate. The time of an event says which look this is, late or not."""
    if "Records" in event:
        # It is of index.py, to which this is appended.
        handler(event, context)  # noqa: F821 # pyright: ignore[reportUndefinedVariable]
        return
    now = datetime.strptime(event["time"], "%Y-%m-%dT%H:%M:%S%z").timestamp()
    stacks = CLIENT("cloudformation")
    stack = stacks.describe_stacks(StackName=OWN_STACK)["Stacks"][0]
    left = (due := end(stack)) - now - int(SETTINGS["WARNING"])
    if 0 < due <= now:
        if not is_shared():
            # What mails is deleted first, and even if something stays.
            try:
                warn("is being deleted without its data: `phalanx ls` shows whether anything stays.")
            finally:
                stacks.delete_stack(StackName=OWN_STACK, RoleARN=SETTINGS["ROLE"])
        elif (now - due) % 86400 < PERIOD_S:
            warn("stays: another cluster uses its network or files.")
    elif -PERIOD_S < left <= 0:
        when = time.strftime("%F %H:%M UTC", time.gmtime(due))
        warn("will be deleted at " + when + " without its data. `phalanx extend` or `up` prevents it.")


def end(stack: dict) -> float:
    """Return when the stack is to be deleted; 0 while it changes, and while a node runs, starts or ends."""
    scaling = CLIENT("autoscaling")
    names = [CLUSTER + "-head", CLUSTER + "-workers"]
    groups = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=names)["AutoScalingGroups"]
    if not stack["StackStatus"].endswith("_COMPLETE") or any(
        group["DesiredCapacity"] or group["Instances"] for group in groups
    ):
        return 0
    moments = [stack.get("LastUpdatedTime") or stack["CreationTime"]]
    for name in names:
        for activity in scaling.describe_scaling_activities(AutoScalingGroupName=name, MaxRecords=1)["Activities"]:
            if "EndTime" not in activity:
                return 0
            moments.append(activity["EndTime"])
    kept = [float(tag["Value"]) for group in groups for tag in group["Tags"] if tag["Key"] == KEEP_TAG]
    return max(max(moments).timestamp() + int(SETTINGS["DOWN_AFTER"]), *kept, 0)


def is_shared() -> bool:
    """Whether another cluster is in the network that would go, or is let in to the files: `phalanx down` refuses it."""
    chosen = [{"Name": "tag-key", "Values": [CLUSTER_TAG]}]
    groups = CLIENT("ec2").describe_security_groups(Filters=chosen)["SecurityGroups"]
    own = [group for group in groups if {"Key": CLUSTER_TAG, "Value": CLUSTER} in group["Tags"]]
    near = {pair["GroupId"] for group in own for rule in group["IpPermissions"] for pair in rule["UserIdGroupPairs"]}
    if SETTINGS["NETWORK"]:
        near |= {group["VpcId"] for group in own}
    return any(near & {group["GroupId"], group["VpcId"]} for group in groups if group not in own)


def warn(text: str) -> None:
    """Mail a warning to those who subscribed."""
    CLIENT("sns").publish(
        TopicArn=SETTINGS["TOPIC"],
        Subject="phalanx: cluster " + CLUSTER,
        Message=CLUSTER + " is stopped; its stack " + text,
        MessageAttributes={"kind": {"DataType": "String", "StringValue": "notice"}},
    )
