"""A boot script too large for a request: the template goes through a bucket, and the script reaches every node."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from local_clouds import api

from conftest import Terminal, a_cluster

pytestmark = pytest.mark.cluster

SCRIPT = f"test $(echo {random.Random(1).randbytes(30_000).hex()} | wc -c) = 60001\ntouch /etc/large-script-ran\n"


def spec(name: str, bucket: str, nodes: int = 2) -> str:
    return json.dumps({"name": name, "nodes": nodes, "bucket": bucket, "boot": SCRIPT})


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_cluster(spec("large", "my-templates")) as made:
        yield made


def test_it_comes_up_and_leaves_nothing_in_the_bucket(terminal):
    for node in ("worker1", "worker2"):
        terminal.on(node, "ls /etc/large-script-ran")
    assert not api(terminal, "s3").list_objects_v2(Bucket="my-templates").get("Contents")
    body = api(terminal, "cloudformation").get_template(StackName="large")["TemplateBody"]
    assert len(json.dumps(body)) > 51_200


def test_a_bucket_that_may_be_public_or_lies_elsewhere_is_refused_before_anything_is_made(terminal):
    s3 = api(terminal, "s3")
    s3.create_bucket(Bucket="open-templates")
    s3.delete_public_access_block(Bucket="open-templates")
    s3.create_bucket(Bucket="far-templates", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    for bucket, words in (("open-templates", "does not block all public access"), ("far-templates", "is in eu-west-1")):
        (terminal.directory / "other.yaml").write_text(spec("other", bucket, nodes=1))
        for command in ("plan", "up"):
            done = terminal.phalanx(command, "-f", "other.yaml", check=False)
            assert done.returncode == 2 and f"other.yaml:1: bucket: {bucket} {words}" in done.stderr
        assert not s3.list_objects_v2(Bucket=bucket).get("Contents")
    stacks = api(terminal, "cloudformation").describe_stacks()["Stacks"]
    assert [stack["StackName"] for stack in stacks] == ["large"]
