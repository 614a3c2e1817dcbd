"""A cluster's document comes up in ministack, an AWS that is not ours, and goes again; what it lacks is laid aside."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import other_programs
import pytest
from botocore.config import Config
from plans import default_document

pytestmark = pytest.mark.long

# Types of 1.5.33 that it does not know. Nor does a machine boot there that would signal the wait condition.
LACKING = {
    "AWS::EC2::EIP",
    "AWS::EC2::NatGateway",
    "AWS::EC2::SecurityGroupEgress",
    "AWS::EC2::SecurityGroupIngress",
    "AWS::CloudFormation::WaitCondition",
}
SETTLED_S = 120


def references(value: Any) -> Iterator[str]:
    """Yield the names of resources that a part of a document refers to."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key == "Ref":
                yield one
            elif key == "Fn::GetAtt":
                yield one[0] if isinstance(one, list) else one.partition(".")[0]
            else:
                yield from references(one)
    elif isinstance(value, list):
        for one in value:
            yield from references(one)


def without(document: dict[str, Any], types: set[str]) -> dict[str, Any]:
    """Return the document without resources of these types, and without what refers to them."""
    left = {name: one for name, one in document["Resources"].items() if one["Type"] not in types}
    while gone := [
        name
        for name, one in left.items()
        if {*references(one.get("Properties"))} & (document["Resources"].keys() - left)
    ]:
        left = {name: one for name, one in left.items() if name not in gone}
    for one in left.values():
        named = one.pop("DependsOn", [])
        one["DependsOn"] = [name for name in ([named] if isinstance(named, str) else named) if name in left]
    missing = document["Resources"].keys() - left
    outputs = {name: one for name, one in document["Outputs"].items() if not {*references(one)} & missing}
    return {**document, "Resources": left, "Outputs": outputs}


def test_our_document_comes_up_elsewhere_and_leaves_nothing(tmp_path: Path):
    document = without(default_document(), LACKING)
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    config = Config(retries={"total_max_attempts": 1})
    with other_programs.ministack(tmp_path) as url:
        cloudformation, ssm = (
            boto3.client(one, endpoint_url=url, config=config, **keys) for one in ("cloudformation", "ssm")
        )
        ssm.put_parameter(Name="/judges/image", Value="ami-0123456789abcdef0", Type="String")
        # As `up` does: with the agent's code in it, the document would be too long.
        values = {name: one.pop("Default") for name, one in document["Parameters"].items() if "Agent" in name}
        values["Image"] = "/judges/image"
        parameters = [{"ParameterKey": name, "ParameterValue": value} for name, value in values.items()]
        given = {
            "TemplateBody": json.dumps(document, separators=(",", ":")),
            "Parameters": parameters,
            "Capabilities": ["CAPABILITY_IAM"],
        }
        stack = cloudformation.create_stack(StackName="demo", OnFailure="DO_NOTHING", **given)["StackId"]
        assert settled(cloudformation, stack) == "CREATE_COMPLETE", failures(cloudformation, stack)
        pages = cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack)
        made = {one["LogicalResourceId"] for page in pages for one in page["StackResourceSummaries"]}
        always = {name for name, one in document["Resources"].items() if "Condition" not in one}
        assert always <= made <= document["Resources"].keys()
        print(f"JUDGED document: {len(made)} of {len(default_document()['Resources'])} resources come up in ministack")
        cloudformation.delete_stack(StackName=stack)
        assert settled(cloudformation, stack) == "DELETE_COMPLETE", failures(cloudformation, stack)


def settled(cloudformation: Any, stack: str) -> str:
    deadline = time.monotonic() + SETTLED_S
    while True:
        status = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]
        if not status.endswith("IN_PROGRESS"):
            return status
        assert time.monotonic() < deadline, failures(cloudformation, stack)
        time.sleep(0.2)


def failures(cloudformation: Any, stack: str) -> list[str]:
    events = cloudformation.describe_stack_events(StackName=stack)["StackEvents"]
    return [f"{one['LogicalResourceId']} {one['ResourceStatus']}: {one.get('ResourceStatusReason')}" for one in events]
