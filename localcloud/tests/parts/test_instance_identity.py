"""Calls that an instance signs with its identity document: which CloudFormation takes, and for which stack."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import pytest
from fleet_fakes import IMAGE, name, until
from stack_fakes import TOPIC, Stacks

from localcloud.ec2 import identity


@pytest.fixture(scope="module")
def mine(cloud: Stacks) -> dict[str, str]:
    """A stack with a machine, by name, id and the machine's id."""
    machine = {
        "Type": "AWS::EC2::Instance",
        "Properties": {"ImageId": IMAGE, "InstanceType": "t3.micro"},
        "Metadata": {"Colour": {"Ref": "AWS::Region"}},
    }
    stack = name("mine")
    made = cloud.made({"Machine": machine}, StackName=stack)
    return {"name": stack, "id": made, "machine": cloud.physical(made, "Machine")}


def call(cloud: Stacks, machine: str, forged: dict[str, str] | None = None, **asked: Any) -> tuple[int, str]:
    """Send a request signed by a machine, or with a document that was changed after it had been signed."""
    document = {"instanceId": machine, "region": "us-east-1"}
    signature = identity.signature(json.dumps(document))
    shown = base64.b64encode(json.dumps({**document, **(forged or {})}).encode()).decode()
    given = {"Action": "DescribeStackResource", "LogicalResourceId": "Machine", **asked}
    request = urllib.request.Request(f"{cloud.context.url_host}/", urllib.parse.urlencode(given).encode())
    request.add_header("Authorization", f"CFN_V1 {shown}:{signature}")
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_an_instance_without_a_role_reads_its_own_stack_s_metadata(cloud, mine):
    for stack in (mine["name"], mine["id"]):
        status, text = call(cloud, mine["machine"], StackName=stack)
        assert status == 200
        assert "us-east-1" in text


def test_it_reads_no_other_stack_and_calls_nothing_else(cloud, mine):
    other = name("other")
    cloud.made({"Machine": TOPIC}, StackName=other)
    refusal = f"Instance {mine['machine']} is not allowed to call DescribeStackResource for {other}"
    status, text = call(cloud, mine["machine"], StackName=other)
    assert (status, refusal in text, "<Code>AccessDenied</Code>" in text) == (403, True, True)
    for operation in ("DescribeStacks", "DeleteStack", "DescribeInstances"):
        assert call(cloud, mine["machine"], StackName=mine["name"], Action=operation)[0] == 403


def test_a_document_that_was_changed_is_not_believed(cloud, mine):
    status, text = call(cloud, "i-0123456789abcdef0", {"instanceId": mine["machine"]}, StackName=mine["name"])
    assert (status, "MissingAuthenticationToken" in text) == (403, True)


def test_an_instance_that_has_ended_is_refused(cloud):
    machine = {"Type": "AWS::EC2::Instance", "Properties": {"ImageId": IMAGE, "InstanceType": "t3.micro"}}
    stack = cloud.made({"Machine": machine})
    ended = cloud.physical(stack, "Machine")
    cloud.client("ec2").terminate_instances(InstanceIds=[ended])
    until(lambda: call(cloud, ended, StackName=stack)[0] == 403)
