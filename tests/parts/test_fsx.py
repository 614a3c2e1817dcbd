"""The local cloud's FSx through its API: links to S3, which follow both sides, and what phalanx asks it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aws_here import AwsHere
from botocore.exceptions import ClientError
from fleet_fakes import forget_resources
from moto.s3.models import s3_backends
from stack_fakes import Stacks, stacks

from localcloud.storage import fsx
from localcloud.storage.file_systems import directory
from localcloud.storage.fsx.records import Link
from localcloud.storage.fsx.service import Service
from phalanx.aws import lustre_file_systems
from phalanx.aws.inventory import remains
from phalanx.aws.inventory.orphans import clusters

BUCKET = "bucket-of-fsx"
ACCOUNT = "123456789012"
EVERYTHING = {"Events": ["NEW", "CHANGED", "DELETED"]}
KIND = {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        running.client("s3").create_bucket(Bucket=BUCKET)
        yield running
        forget_resources(running.context.account)


@pytest.fixture(scope="module")
def network(cloud: Stacks) -> dict[str, Any]:
    ec2 = cloud.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="lustre", Description="Lustre", VpcId=vpc)["GroupId"]
    rule = {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 988, "UserIdGroupPairs": [{"GroupId": group}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    return {"vpc": vpc, "SubnetIds": [subnet], "SecurityGroupIds": [group]}


@pytest.fixture
def made(cloud: Stacks, network: dict[str, Any]) -> Iterator[dict[str, Any]]:
    where = {key: value for key, value in network.items() if key != "vpc"}
    tags = [{"Key": "phalanx:cluster", "Value": "left"}]
    api = cloud.client("fsx")
    given = {"FileSystemType": "LUSTRE", "StorageCapacity": 2400, "LustreConfiguration": KIND, "Tags": tags}
    found = api.create_file_system(FileSystemTypeVersion="2.15", **given, **where)["FileSystem"]
    yield found
    if found["FileSystemId"] in fsx.running().systems:
        api.delete_file_system(FileSystemId=found["FileSystemId"])


@pytest.fixture
def linked(cloud: Stacks, made: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Link data/ours both ways and data/theirs for reading; return the file system's directory and S3."""
    s3 = cloud.client("s3")
    for key in ("ours/a", "ours/b/c", "theirs/x", "theirs/deep/", "theirs/../../out"):
        s3.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
    for name, policies in (
        ("ours", {"AutoImportPolicy": EVERYTHING, "AutoExportPolicy": EVERYTHING}),
        ("theirs", {"AutoImportPolicy": EVERYTHING}),
    ):
        cloud.client("fsx").create_data_repository_association(
            FileSystemId=made["FileSystemId"],
            FileSystemPath=f"/data/{name}",
            DataRepositoryPath=f"s3://{BUCKET}/{name}",
            BatchImportMetaDataOnCreate=True,
            S3=policies,
        )
    yield cloud.context.state / "efs" / made["FileSystemId"] / "data", s3
    for key in keys(s3):
        s3.delete_object(Bucket=BUCKET, Key=key)


def keys(s3: Any) -> set[str]:
    return {one["Key"] for one in s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])}


def test_objects_are_files_when_the_link_is_there(linked):
    directory, _ = linked
    assert (directory / "ours/b/c").read_text() == "ours/b/c"
    assert (directory / "theirs/deep").is_dir()
    assert {path.name for path in directory.parent.parent.iterdir()} <= {directory.parent.name}, "nothing outside"


def test_both_sides_follow_each_other_as_far_as_the_policies_say(linked):
    directory, s3 = linked
    s3.put_object(Bucket=BUCKET, Key="theirs/new", Body=b"new")
    s3.put_object(Bucket=BUCKET, Key="ours/a", Body=b"changed")
    s3.delete_object(Bucket=BUCKET, Key="theirs/x")
    (directory / "ours/mine").write_text("mine")
    (directory / "theirs/mine").write_text("mine")
    (directory / "ours/b/c").unlink()
    fsx.running().look()
    assert ((directory / "theirs/new").read_text(), (directory / "ours/a").read_text()) == ("new", "changed")
    assert not (directory / "theirs/x").exists()
    assert keys(s3) == {"ours/a", "ours/mine", "theirs/deep/", "theirs/new", "theirs/../../out"}
    assert s3.get_object(Bucket=BUCKET, Key="ours/mine")["Body"].read() == b"mine"


def test_what_a_job_plants_is_not_followed(linked, tmp_path):
    directory, s3 = linked
    (tmp_path / "secret").write_text("secret")
    (directory / "ours/leak").symlink_to(tmp_path / "secret")
    (directory / "ours/out").symlink_to(tmp_path)
    os.mkfifo(directory / "ours/waits")
    s3.put_object(Bucket=BUCKET, Key="ours/out/written", Body=b"x")
    fsx.running().look()
    assert not (tmp_path / "written").exists()
    assert not {"ours/leak", "ours/waits"} & keys(s3)


def test_a_link_that_ends_leaves_its_files(cloud, linked):
    directory, s3 = linked
    api = cloud.client("fsx")
    for one in api.describe_data_repository_associations()["Associations"]:
        api.delete_data_repository_association(AssociationId=one["AssociationId"])
    s3.put_object(Bucket=BUCKET, Key="ours/later", Body=b"x")
    fsx.running().look()
    assert not (directory / "ours/later").exists() and (directory / "ours/a").exists()
    assert api.describe_data_repository_associations()["Associations"] == []


def test_an_export_goes_on_with_a_bucket_that_is_gone(cloud, linked):
    directory, _ = linked
    (directory / "ours/mine").write_text("mine")
    link = next(iter(next(iter(fsx.running().systems.values())).links.values()))
    link.bucket = "nobodys"
    fsx.running().look()


def test_phalanx_finds_one_of_the_user_s_by_its_interface(cloud, network, made):
    found = lustre_file_systems.find(AwsHere(cloud.client), made["FileSystemId"])
    assert (found.vpc, list(found.groups)) == (network["vpc"], network["SecurityGroupIds"])
    assert found.place == f"{made['DNSName']}@tcp:/{made['LustreConfiguration']['MountName']}"


def test_one_that_a_cluster_left_is_found_by_its_tag_and_costs_until_it_is_deleted(cloud, made):
    aws = AwsHere(cloud.client)
    (line,) = remains.find(aws, "left", [])
    assert line == f"Lustre file system {made['FileSystemId']} (AVAILABLE)"
    assert "left" in clusters(aws) and remains.find(aws, "another", []) == []
    price = lustre_file_systems.usd_per_hour(aws, "left", made["FileSystemId"])
    assert price == pytest.approx(2400 * 0.21 / 730, abs=1e-4)
    assert lustre_file_systems.usd_per_hour(aws, "another", made["FileSystemId"]) == 0.0
    assert lustre_file_systems.delete(aws, made["FileSystemId"]) == ""
    assert lustre_file_systems.describe(aws, made["FileSystemId"]) is None
    assert lustre_file_systems.delete(aws, made["FileSystemId"]) == ""
    assert remains.find(aws, "left", []) == []
    assert not (cloud.context.state / "efs" / made["FileSystemId"]).exists()


def test_one_grows_in_place_and_gets_another_speed_as_a_stack_is_updated(cloud, network):
    where = {key: value for key, value in network.items() if key != "vpc"}

    def of(size: int, speed: int) -> dict[str, Any]:
        kind = {**KIND, "PerUnitStorageThroughput": speed}
        properties = {"FileSystemType": "LUSTRE", "StorageCapacity": size, "LustreConfiguration": kind, **where}
        return {"Files": {"Type": "AWS::FSx::FileSystem", "Properties": properties}}

    stack = cloud.made(of(1200, 250))
    made = cloud.physical(stack, "Files")
    for size, speed in ((4800, 250), (4800, 500)):
        assert cloud.updated(stack, of(size, speed)) == "UPDATE_COMPLETE"
        (found,) = cloud.client("fsx").describe_file_systems(FileSystemIds=[made])["FileSystems"]
        assert found["StorageCapacity"] == size
        assert found["LustreConfiguration"]["PerUnitStorageThroughput"] == speed
    assert cloud.physical(stack, "Files") == made
    grow = cloud.client("fsx").update_file_system
    with pytest.raises(ClientError, match="in the last 6 hours"):
        grow(FileSystemId=made, StorageCapacity=7200)
    cloud.clock.advance(6 * 3600)
    for size in (2400, 4800 + 1200):
        with pytest.raises(ClientError, match="multiple of 2400 GiB above the current capacity, 4800"):
            grow(FileSystemId=made, StorageCapacity=size)
    assert grow(FileSystemId=made, StorageCapacity=7200)["FileSystem"]["StorageCapacity"] == 7200
    with pytest.raises(ClientError, match="does not serve fsx:UpdateFileSystem with DataCompressionType"):
        grow(FileSystemId=made, LustreConfiguration={"DataCompressionType": "LZ4"})
    assert cloud.deleted(stack) == "DELETE_COMPLETE"


def test_what_is_not_served_is_refused_by_name(cloud, made):
    with pytest.raises(ClientError, match="does not serve fsx:CreateBackup") as refused:
        cloud.client("fsx").create_backup(FileSystemId=made["FileSystemId"])
    assert refused.value.response["Error"]["Code"] == "UnsupportedOperation"


def test_a_stop_exports_what_was_written_last_and_no_later_look_deletes_it(tmp_path):
    """The directories end with the local cloud, and the bucket does not."""
    s3_backends[ACCOUNT]["aws"].create_bucket("outlives", "us-east-1")
    s3_backends[ACCOUNT]["aws"].put_object("outlives", "before", b"x")
    context: Any = SimpleNamespace(
        state=tmp_path, account=ACCOUNT, root_of_nodes=os.getuid(), spawn=lambda *_, **__: None, keep_buckets=list
    )
    service = Service(context)
    every = frozenset(("NEW", "CHANGED", "DELETED"))
    link = Link("dra-1", "data", "outlives", "", every, every)
    system: Any = SimpleNamespace(file_system_id="fs-1", account=ACCOUNT, links={"dra-1": link})
    service.systems["fs-1"] = system
    place = directory(tmp_path, "fs-1")
    place.mkdir(parents=True)
    service.look()
    (place / "data/late").write_text("y")
    service.stop()
    shutil.rmtree(place)
    place.mkdir()
    service.look()
    service._sync(system, link)
    assert set(s3_backends[ACCOUNT]["aws"].buckets["outlives"].keys) == {"before", "late"}
