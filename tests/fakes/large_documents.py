"""A phalanx.yaml whose document is too large for a request, a bucket for it, and AWS as a person may use it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from aws_here import AwsHere
from botocore.exceptions import ClientError
from fake_cloud import write_key
from fleet_fakes import forget_resources, name
from stack_fakes import TOPIC, Stacks, stacks

from localcloud.daemon import faults
from phalanx import connection
from phalanx.cluster import keys as cluster_keys

TAGS = {f"{n:02}{'k' * 126}": "v" * 256 for n in range(40)}
ALL = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
TRUST = {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::123456789012:root"}, "Action": "sts:AssumeRole"}
TOPICS = {"Resources": {"Topic": TOPIC}}
# Of the printed policy, what is about buckets.
OF_BUCKETS = ("DocumentBucket", "Documents")


class OfAccount:
    """What the account's settings block: S3's own API for them, whose addresses this machine can't have."""

    blocked: tuple[str, ...] = ()

    def get_public_access_block(self, AccountId: str) -> dict[str, Any]:
        assert AccountId == "123456789012"
        if not self.blocked:
            raise ClientError({"Error": {"Code": "NoSuchPublicAccessBlockConfiguration"}}, "GetPublicAccessBlock")
        return {"PublicAccessBlockConfiguration": {one: one in self.blocked for one in ALL}}


class Aws(AwsHere):
    """AWS, of which a user who waits for the stack's events has enough."""

    poll_interval_s = 0.0
    interrupted = "describe_stack_events"
    # Called before an operation of that name.
    before: Mapping[str, Callable[[], object]] = MappingProxyType({})

    def __init__(self, make: Any) -> None:
        super().__init__(make)
        self.of_account = OfAccount()

    def client(self, service: str) -> Any:
        return self.of_account if service == "s3control" else super().client(service)

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        if operation == self.interrupted:
            raise KeyboardInterrupt
        self.before.get(operation, lambda: None)()
        return super().call(service, operation, **arguments)


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as made:
        faults.apply(made.context, {"vcpu_limit": None, "address_limit": None, "vpc_limit": None})
        yield made
        forget_resources(made.context.account)


@pytest.fixture
def use(monkeypatch):
    """Have `phalanx` use this cloud from now on."""

    def used_now(cloud: Aws) -> Aws:
        monkeypatch.setattr(connection, "connect", lambda name, region: cloud)
        return cloud

    monkeypatch.setattr(connection, "begin", lambda name: None)
    monkeypatch.setattr(cluster_keys, "_generate", write_key)
    return used_now


@pytest.fixture
def aws(local, use) -> Aws:
    return use(Aws(local.client))


@pytest.fixture
def s3(local) -> Any:
    return local.client("s3")


@pytest.fixture
def bucket(s3) -> str:
    """A bucket as S3 makes it."""
    made = name("documents")
    s3.create_bucket(Bucket=made)
    return made


@pytest.fixture
def write(tmp_path):
    """Write a phalanx.yaml whose document no request takes; return the cluster's name."""

    def written(bucket: str = "", tags: dict[str, str] = TAGS) -> str:
        cluster = name("large").replace("_", "-")
        more = {"bucket": bucket} if bucket else {}
        wanted = {"name": cluster, "nodes": 2, "cloud": "aws", "ssh_from": "203.0.113.7/32", **more, "tags": tags}
        lines = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in wanted.items())
        (tmp_path / "phalanx.yaml").write_text("\n".join(lines) + "\n")
        return cluster

    return written


def keys(s3: Any, bucket: str) -> list[str]:
    return [one["Key"] for one in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]


def template_of(local: Stacks, cluster: str) -> dict[str, Any]:
    return local.cloudformation.get_template(StackName=cluster)["TemplateBody"]


def person(local: Stacks, statements: list[Any]) -> tuple[str, Aws]:
    """Return a role with these rights, and AWS as who has it sees it."""
    iam, role = local.client("iam"), name("person")
    trust = json.dumps({"Version": "2012-10-17", "Statement": [TRUST]})
    arn = iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    document = json.dumps({"Version": "2012-10-17", "Statement": statements})
    iam.put_role_policy(RoleName=role, PolicyName="phalanx", PolicyDocument=document)
    session = local.client("sts").assume_role(RoleArn=arn, RoleSessionName="me")["Credentials"]
    return role, Aws(functools.cache(lambda service: local.client_of(service, session)))


def without(statements: list[Any], missing: str) -> list[Any]:
    left = [{**one, "Action": [action for action in one["Action"] if action != missing]} for one in statements]
    return [one for one in left if one["Action"]]


FIXTURES = aws, bucket, local, s3, use, write
