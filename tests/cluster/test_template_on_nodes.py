"""A long boot script travels as parameters of the stack, and the document that `template` prints needs nothing else."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator

import pytest
from local_clouds import api

from conftest import Terminal, a_cluster

pytestmark = pytest.mark.cluster

SCRIPT = f"test $(echo {random.Random(1).randbytes(30_000).hex()} | wc -c) = 60001\ntouch /etc/large-script-ran\n"


def spec(name: str) -> str:
    return json.dumps({"name": name, "nodes": 2, "boot": SCRIPT})


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_cluster(spec("large")) as made:
        yield made


def test_it_reaches_every_node(terminal):
    for node in ("worker1", "worker2"):
        terminal.on(node, "ls /etc/large-script-ran")
    (stack,) = api(terminal, "cloudformation").describe_stacks(StackName="large")["Stacks"]
    agent = [p["ParameterValue"] for p in stack["Parameters"] if p["ParameterKey"].startswith("Agent")]
    assert len(agent) > 10 and {len(text) for text in agent[:-1]} == {4096}


def test_the_printed_document_alone_makes_a_cluster_as_in_the_console(terminal):
    """The console puts a document of this size into a bucket of its own, and sends its URL."""
    (terminal.directory / "console.yaml").write_text(spec("console"))
    document = terminal.phalanx("template", "-f", "console.yaml").stdout
    assert len(document) > 51_200
    s3, cloudformation = api(terminal, "s3"), api(terminal, "cloudformation")
    s3.create_bucket(Bucket="templates")
    s3.put_object(Bucket="templates", Key="console.json", Body=document.encode())
    there = f"{s3.meta.endpoint_url}/templates/console.json"
    cloudformation.create_stack(StackName="console", TemplateURL=there, Capabilities=["CAPABILITY_IAM"])
    stack = settled(cloudformation, "console")
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
    assert stack["StackStatus"] == "CREATE_COMPLETE"
    assert json.loads(json.loads(outputs["Outcome"])["phalanx"])["missing"] == []
    cloudformation.delete_stack(StackName=stack["StackId"])
    assert settled(cloudformation, stack["StackId"])["StackStatus"] == "DELETE_COMPLETE"


def settled(cloudformation, stack):
    deadline = time.monotonic() + 120
    while True:
        (found,) = cloudformation.describe_stacks(StackName=stack)["Stacks"]
        if not found["StackStatus"].endswith("IN_PROGRESS"):
            return found
        assert time.monotonic() < deadline, found["StackStatus"]
        time.sleep(0.2)
