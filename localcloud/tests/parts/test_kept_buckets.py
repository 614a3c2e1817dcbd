"""Buckets that an earlier local cloud kept, found again when it starts.

Each test starts local clouds of its own, one after the other, so no other one may run in this process.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.s3.models import s3_backends
from stack_fakes import stacks

ACCOUNT = "123456789012"
# More than one part of an upload, and more than moto holds in memory.
LARGE = bytes(range(256)) * 50_000


@pytest.fixture
def cloud(tmp_path) -> Any:
    """Return a function that starts a local cloud in the same directory, as in a new process."""
    s3_backends.reset()
    yield functools.partial(_started, tmp_path)
    s3_backends.reset()


def _started(path: Any) -> Any:
    s3_backends.reset()
    return stacks(path)


def test_objects_are_there_again_with_all_that_s3_says_of_them(cloud):
    with cloud() as first:
        s3 = first.client("s3")
        s3.create_bucket(Bucket="my-bucket")
        s3.put_bucket_tagging(Bucket="my-bucket", Tagging={"TagSet": [{"Key": "of", "Value": "me"}]})
        s3.put_object(Bucket="my-bucket", Key="a/ü?", Body=b"1", Metadata={"who": "me"}, ContentType="text/plain")
        s3.put_object_tagging(Bucket="my-bucket", Key="a/ü?", Tagging={"TagSet": [{"Key": "k", "Value": "v"}]})
        begun = s3.create_multipart_upload(Bucket="my-bucket", Key="large")["UploadId"]
        part = {"Bucket": "my-bucket", "Key": "large", "UploadId": begun}
        tags = [s3.upload_part(**part, PartNumber=n, Body=LARGE)["ETag"] for n in (1, 2)]
        parts = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, 1)]
        s3.complete_multipart_upload(**part, MultipartUpload={"Parts": parts})
        before = [s3.head_object(Bucket="my-bucket", Key=key) for key in ("a/ü?", "large")]
        listed = s3.list_objects_v2(Bucket="my-bucket")["Contents"]
    with cloud() as second:
        s3 = second.client("s3")
        assert s3.get_bucket_tagging(Bucket="my-bucket")["TagSet"] == [{"Key": "of", "Value": "me"}]
        assert s3.list_objects_v2(Bucket="my-bucket")["Contents"] == listed
        after = [s3.head_object(Bucket="my-bucket", Key=key) for key in ("a/ü?", "large")]
        for one in (*before, *after):
            del one["ResponseMetadata"]
        assert after == before
        assert s3.get_object(Bucket="my-bucket", Key="a/ü?")["Body"].read() == b"1"
        assert s3.get_object_tagging(Bucket="my-bucket", Key="a/ü?")["TagSet"] == [{"Key": "k", "Value": "v"}]
        assert s3.get_object(Bucket="my-bucket", Key="large")["Body"].read() == LARGE * 2
        ranged = s3.get_object(Bucket="my-bucket", Key="large", Range=f"bytes={len(LARGE) - 2}-{len(LARGE) + 1}")
        assert ranged["Body"].read() == b"\xfe\xff\0\x01"


def test_what_is_deleted_or_replaced_stays_so(cloud, tmp_path):
    with cloud() as first:
        s3 = first.client("s3")
        for bucket in ("my-bucket", "another"):
            s3.create_bucket(Bucket=bucket)
            for key in ("one", "two", "three"):
                s3.put_object(Bucket=bucket, Key=key, Body=b"first")
        s3.delete_object(Bucket="my-bucket", Key="one")
        s3.delete_objects(Bucket="my-bucket", Delete={"Objects": [{"Key": "two"}]})
    with cloud() as second:
        s3 = second.client("s3")
        s3.copy_object(Bucket="my-bucket", Key="copy", CopySource="another/one")
        s3.put_object(Bucket="my-bucket", Key="three", Body=b"second")
        s3.delete_objects(Bucket="another", Delete={"Objects": [{"Key": key} for key in ("one", "two", "three")]})
        s3.delete_bucket(Bucket="another")
    with cloud() as third:
        s3 = third.client("s3")
        assert [one["Name"] for one in s3.list_buckets()["Buckets"]] == ["my-bucket"]
        found = [one["Key"] for one in s3.list_objects_v2(Bucket="my-bucket")["Contents"]]
        assert found == ["copy", "three"]
        contents = [s3.get_object(Bucket="my-bucket", Key=key)["Body"].read() for key in found]
        assert contents == [b"first", b"second"]
        s3.delete_objects(Bucket="my-bucket", Delete={"Objects": [{"Key": key} for key in found]})
        s3.delete_bucket(Bucket="my-bucket")
    assert not any((tmp_path / "buckets").iterdir())


def test_a_new_bucket_is_private_and_encrypted_until_somebody_changes_that(cloud):
    with cloud() as first:
        s3 = first.client("s3")
        for bucket in ("my-bucket", "open"):
            s3.create_bucket(Bucket=bucket)
            assert all(blocks_of(s3, bucket).values())
        s3.put_public_access_block(Bucket="open", PublicAccessBlockConfiguration={"BlockPublicAcls": True})
        s3.delete_bucket_encryption(Bucket="open")
    with cloud() as second:
        s3 = second.client("s3")
        assert all(blocks_of(s3, "my-bucket").values())
        rule = s3.get_bucket_encryption(Bucket="my-bucket")["ServerSideEncryptionConfiguration"]["Rules"][0]
        assert rule["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
        assert [name for name, blocks in blocks_of(s3, "open").items() if blocks] == ["BlockPublicAcls"]
        with pytest.raises(ClientError, match="ServerSideEncryptionConfigurationNotFoundError"):
            s3.get_bucket_encryption(Bucket="open")


def blocks_of(s3: Any, bucket: str) -> dict[str, bool]:
    return s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]


def test_a_versioned_bucket_goes_on_with_its_newest_versions(cloud):
    with cloud() as first:
        s3 = first.client("s3")
        s3.create_bucket(Bucket="my-bucket")
        s3.put_bucket_versioning(Bucket="my-bucket", VersioningConfiguration={"Status": "Enabled"})
        for key in ("kept", "deleted"):
            s3.put_object(Bucket="my-bucket", Key=key, Body=b"old")
        newest = s3.put_object(Bucket="my-bucket", Key="kept", Body=b"new")["VersionId"]
        s3.delete_object(Bucket="my-bucket", Key="deleted")
    with cloud() as second:
        s3 = second.client("s3")
        assert s3.get_bucket_versioning(Bucket="my-bucket")["Status"] == "Enabled"
        assert [one["Key"] for one in s3.list_objects_v2(Bucket="my-bucket")["Contents"]] == ["kept"]
        assert s3.get_object(Bucket="my-bucket", Key="kept")["VersionId"] == newest


def test_a_kill_loses_nothing_that_was_answered(cloud):
    """A local cloud that is killed writes nothing at its end."""
    with cloud() as first:
        s3 = first.client("s3")
        s3.create_bucket(Bucket="my-bucket")
        s3.put_object(Bucket="my-bucket", Key="a", Body=b"1")
        with cloud() as second:
            assert second.client("s3").get_object(Bucket="my-bucket", Key="a")["Body"].read() == b"1"


def test_buckets_of_a_stack_end_with_it_unless_it_retains_them(cloud):
    bucket = {"Type": "AWS::S3::Bucket"}
    own = {**bucket, "Properties": {"BucketName": "of-a-stack"}}
    kept = {**bucket, "Properties": {"BucketName": "retained"}, "DeletionPolicy": "Retain"}
    with cloud() as first:
        first.made({"Own": own, "Kept": kept})
        for name in ("of-a-stack", "retained"):
            first.client("s3").put_object(Bucket=name, Key="a", Body=b"1")
    with cloud() as second:
        assert [one["Name"] for one in second.client("s3").list_buckets()["Buckets"]] == ["retained"]


@pytest.mark.parametrize("damage", ["", "[]\nx", '{"key": "a"}\n'])
def test_a_damaged_object_is_named_and_the_others_are_there(cloud, tmp_path, damage):
    with cloud() as first:
        s3 = first.client("s3")
        s3.create_bucket(Bucket="my-bucket")
        for key in "ab":
            s3.put_object(Bucket="my-bucket", Key=key, Body=b"1")
    broken = next(
        path for path in (tmp_path / "buckets/my-bucket").iterdir() if path.read_text().startswith('{"key": "a"')
    )
    broken.write_text(damage)
    with cloud() as second:
        assert [one["Key"] for one in second.client("s3").list_objects_v2(Bucket="my-bucket")["Contents"]] == ["b"]
        (warning,) = second.context.warnings
        assert str(broken) in warning
    assert broken.exists()


def test_an_object_that_can_t_be_kept_is_served_and_reported(cloud, tmp_path):
    with cloud() as first:
        s3 = first.client("s3")
        s3.create_bucket(Bucket="my-bucket")
        for key in "ab":
            (tmp_path / "buckets/my-bucket" / hashlib.sha256(key.encode()).hexdigest() / "in-the-way").mkdir(
                parents=True
            )
        for key in "ab":
            s3.put_object(Bucket="my-bucket", Key=key, Body=b"1")
        assert s3.get_object(Bucket="my-bucket", Key="a")["Body"].read() == b"1"
        (warning,) = first.context.warnings
        assert warning.startswith("s3://my-bucket/a will not outlive the local cloud, like others perhaps: ")
