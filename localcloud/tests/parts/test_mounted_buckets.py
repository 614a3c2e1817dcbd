"""Mounted buckets of the local cloud: what a node asks for stays in the directory of buckets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fleet_fakes import name
from moto import mock_aws
from moto.s3.models import s3_backends
from stack_fakes import Stacks, stacks

from localcloud.api.admission import VPC
from localcloud.nodes.bootstrap import mountpoint
from localcloud.storage.mounted_buckets import Buckets

ACCOUNT = "123456789012"


@pytest.fixture
def buckets(tmp_path) -> Any:
    """A bucket, and a file of this machine beside the local cloud's directory."""
    outside = tmp_path / "outside/secret"
    outside.parent.mkdir()
    outside.write_text("mine")
    (tmp_path / "state").mkdir()
    context: Any = SimpleNamespace(
        state=tmp_path / "state",
        account=ACCOUNT,
        root_of_nodes=os.getuid(),
        at_stop=lambda _: None,
        spawn=lambda *_, **__: None,
        keep_buckets=lambda: None,
    )
    with mock_aws():
        s3_backends[ACCOUNT]["aws"].create_bucket("my-bucket", "us-east-1")
        yield Buckets(context)


def keys() -> list[str]:
    return list(s3_backends[ACCOUNT]["aws"].buckets["my-bucket"].keys)


def test_files_below_a_mounted_prefix_are_objects_and_objects_files(buckets, tmp_path):
    s3_backends[ACCOUNT]["aws"].put_object("my-bucket", "pets/cat", b"meow")
    buckets.mount("vpc-1", "my-bucket", "pets/")
    place = Path(tmp_path, "state/s3/vpc-1/my-bucket/pets")
    assert (place / "cat").read_bytes() == b"meow"
    (place / "dog").write_text("woof")
    buckets.look("my-bucket")
    assert sorted(keys()) == ["pets/cat", "pets/dog"]


def test_a_stop_exports_what_was_closed_before_it_and_deletes_no_object(buckets, tmp_path):
    """A thread that looked at the files meanwhile would take those that the stop removes for deleted by a job."""
    s3_backends[ACCOUNT]["aws"].put_object("my-bucket", "pets/cat", b"meow")
    buckets.mount("vpc-1", "my-bucket", "pets/")
    Path(tmp_path, "state/s3/vpc-1/my-bucket/pets/late").write_text("x")
    buckets.stop()
    assert not any(Path(tmp_path, "state/s3").iterdir())
    buckets.look()
    assert sorted(keys()) == ["pets/cat", "pets/late"]


def test_the_nodes_of_another_vpc_see_only_what_they_mounted_themselves(buckets, tmp_path):
    s3_backends[ACCOUNT]["aws"].put_object("my-bucket", "pets/cat", b"meow")
    buckets.mount("vpc-1", "my-bucket", "pets/")
    buckets.mount("vpc-2", "my-bucket", "other/")
    there = Path(tmp_path, "state/s3")
    assert sorted(path.name for path in there.glob("*/my-bucket/*")) == ["other", "pets"]
    assert not (there / "vpc-2/my-bucket/pets").exists()
    buckets.mount("vpc-2", "my-bucket", "pets/")
    (there / "vpc-2/my-bucket/pets/dog").write_text("woof")
    buckets.look()
    buckets.look()
    assert (there / "vpc-1/my-bucket/pets/dog").read_text() == "woof", "by way of the bucket"
    (there / "vpc-1/my-bucket/pets/cat").unlink()
    buckets.look()
    buckets.look()
    assert keys() == ["pets/dog"] and not (there / "vpc-2/my-bucket/pets/cat").exists()


def test_a_file_whose_name_no_key_can_have_hides_no_other(buckets, tmp_path):
    buckets.mount("vpc-1", "my-bucket", "pets/")
    place = Path(tmp_path, "state/s3/vpc-1/my-bucket/pets")
    Path(os.fsdecode(os.fsencode(place) + b"/\xff")).write_text("x")
    (place / "dog").write_text("woof")
    buckets.look("my-bucket")
    assert keys() == ["pets/dog"]


def test_a_forgotten_vpc_leaves_its_objects_in_the_bucket_and_no_files_here(buckets, tmp_path):
    """A sync of files that are removed already would take them for deleted by a job."""
    s3_backends[ACCOUNT]["aws"].put_object("my-bucket", "pets/cat", b"meow")
    for vpc_id in ("vpc-1", "vpc-2"):
        buckets.mount(vpc_id, "my-bucket", "pets/")
    there = Path(tmp_path, "state/s3")
    (there / "vpc-1/my-bucket/pets/late").write_text("x")
    buckets.forget("vpc-1")
    assert [path.name for path in there.iterdir()] == ["vpc-2"]
    buckets.look()
    assert sorted(keys()) == ["pets/cat", "pets/late"] and (there / "vpc-2/my-bucket/pets/late").exists()
    assert [path.name for path in there.iterdir()] == ["vpc-2"]


def test_many_clusters_one_after_another_can_mount_and_one_thread_follows_them(buckets, tmp_path):
    threads = list[str]()
    buckets._context.spawn = lambda _, name: threads.append(name)
    for number in range(201):
        buckets.mount(f"vpc-{number}", "my-bucket", "pets/")
        assert Path(tmp_path, f"state/s3/vpc-{number}/my-bucket/pets").is_dir()
        buckets.forget(f"vpc-{number}")
    assert len(threads) == 1


def _mount(cloud: Stacks, vpc_id: str, client: Any = None, operation: str = "list_objects_v2", **given: str) -> None:
    """List a prefix as a node's Mountpoint does, or make another call with its User-Agent."""

    def as_node(environ: dict[str, Any], start_response: Any) -> Any:
        return app({**environ, VPC: vpc_id, "HTTP_USER_AGENT": mountpoint.AGENT}, start_response)

    app, cloud.app = cloud.app, as_node
    try:
        getattr(client or cloud.client("s3"), operation)(Bucket="my-bucket", **(given or {"Prefix": "pets/"}))
    finally:
        cloud.app = app


def test_a_deleted_vpc_is_forgotten(tmp_path):
    with stacks(tmp_path) as cloud:
        cloud.client("s3").create_bucket(Bucket="my-bucket")
        cloud.client("s3").put_object(Bucket="my-bucket", Key="pets/cat", Body=b"meow")
        stack = cloud.made({"Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}}})
        vpc_id = cloud.physical(stack, "Vpc")
        _mount(cloud, vpc_id)
        assert (tmp_path / "s3" / vpc_id / "my-bucket/pets/cat").exists()
        assert cloud.deleted(stack) == "DELETE_COMPLETE"
        assert not (tmp_path / "s3" / vpc_id).exists()
        listed = cloud.client("s3").list_objects_v2(Bucket="my-bucket")["Contents"]
        assert [one["Key"] for one in listed] == ["pets/cat"]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Stacks]:
    with stacks(tmp_path) as cloud:
        cloud.client("s3").create_bucket(Bucket="my-bucket")
        cloud.client("s3").put_object(Bucket="my-bucket", Key="pets/cat", Body=b"meow")
        cloud.client("s3").put_object(Bucket="my-bucket", Key="private/key", Body=b"mine")
        yield cloud
        cloud.client("s3").delete_object(Bucket="my-bucket", Key="private/key")
        cloud.client("s3").delete_object(Bucket="my-bucket", Key="pets/dog")


def reader(cloud: Stacks, *actions: str) -> Any:
    """Return a client with the rights of a job that may do this below pets/."""
    role = name("job")
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}
    rights = [{"Effect": "Allow", "Action": [*actions], "Resource": ["arn:aws:s3:::my-bucket/pets/*"]}]
    rights.append({"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::my-bucket"})
    document = {"Version": "2012-10-17", "Statement": [trust]}
    arn = cloud.client("iam").create_role(RoleName=role, AssumeRolePolicyDocument=json.dumps(document))["Role"]["Arn"]
    document = {"Version": "2012-10-17", "Statement": rights}
    cloud.client("iam").put_role_policy(RoleName=role, PolicyName="p", PolicyDocument=json.dumps(document))
    issued = cloud.client("sts").assume_role(RoleArn=arn, RoleSessionName="me")["Credentials"]
    return cloud.client_of("s3", issued)


def test_mountpoint_s_name_on_another_call_mounts_nothing(cloud, tmp_path):
    _mount(cloud, "vpc-1", reader(cloud, "s3:GetObject"), "get_object", Key="pets/cat")
    assert not (tmp_path / "s3").exists()


def test_what_may_only_be_read_is_not_written_and_what_may_not_be_read_is_not_mounted(cloud, tmp_path):
    job = reader(cloud, "s3:GetObject")
    _mount(cloud, "vpc-1", job)
    _mount(cloud, "vpc-1", job, Prefix="private/")
    _mount(cloud, "vpc-1", job, Prefix="")
    place = tmp_path / "s3/vpc-1/my-bucket"
    assert [path.name for path in place.iterdir()] == ["pets"]
    (place / "pets/dog").write_text("woof")
    (place / "pets/cat").unlink()
    listed = cloud.client("s3").list_objects_v2(Bucket="my-bucket", Prefix="pets/")["Contents"]
    assert [one["Key"] for one in listed] == ["pets/cat"]


def test_what_may_be_written_is(cloud, tmp_path):
    _mount(cloud, "vpc-1", reader(cloud, "s3:GetObject", "s3:PutObject"))
    (tmp_path / "s3/vpc-1/my-bucket/pets/dog").write_text("woof")
    listed = cloud.client("s3").list_objects_v2(Bucket="my-bucket", Prefix="pets/")["Contents"]
    assert [one["Key"] for one in listed] == ["pets/cat", "pets/dog"]


@pytest.mark.parametrize(
    "prefix", ["pets/../../../../outside/", "../../../outside/", "pets//", "pets/./", "pets/\0/", f"{'p' * 256}/"]
)
def test_a_prefix_that_leads_elsewhere_is_not_mounted(buckets, tmp_path, prefix):
    """A job with the right to list a prefix can ask as Mountpoint does, in whatever words."""
    s3_backends[ACCOUNT]["aws"].put_object("my-bucket", f"{prefix}planted", b"x")
    before = keys()
    buckets.mount("vpc-1", "my-bucket", prefix)
    buckets.look()
    assert keys() == before
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["outside", "secret", "state"]
