"""Buckets that outlive the local cloud: a directory each, with a file for each object, behind a line that describes it.

Of a versioned bucket the newest versions are kept. Uploads in parts that are not complete are not kept.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from moto.s3.models import FakeBucket, FakeKey, PublicAccessBlock, S3Backend, s3_backends
from moto.utilities.tagging_service import TaggingService

from localcloud.api import partitions
from localcloud.context import Context
from localcloud.iam import calls
from localcloud.iam.calls import Call

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_PATCHED = ("create_bucket", "delete_bucket", "put_object", "delete_object")
PATCHED = tuple(f"moto.s3.models.S3Backend.{name}" for name in _PATCHED)
_create, _delete = S3Backend.create_bucket, S3Backend.delete_bucket
_put, _remove = S3Backend.put_object, S3Backend.delete_object
_RECORD = "bucket.json"
# They change a bucket's or an object's description by none of the methods that are patched.
_DESCRIBE = frozenset(
    (
        *("DeleteBucketEncryption", "DeleteBucketTagging", "DeleteObjectTagging", "DeletePublicAccessBlock"),
        *("PutBucketEncryption", "PutBucketTagging", "PutBucketVersioning", "PutObjectTagging"),
        "PutPublicAccessBlock",
    )
)
# Of a new bucket, since 2023 (docs/aws-behaviour.md 1.27).
_ENCRYPTION = {"Rule": {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}}
_BLOCKS = ("block_public_acls", "ignore_public_acls", "block_public_policy", "restrict_public_buckets")
_OF_KEY = ("checksum_algorithm", "checksum_value", "checksum_type", "checksum_parts", "encryption", "kms_key_id")


def discard_at_exit(state: Path, bucket: str) -> None:
    """Do not keep a bucket: its stack ends with the local cloud."""
    shutil.rmtree(_directory(state, bucket), ignore_errors=True)


def _directory(state: Path, bucket: str) -> Path:
    return state / "buckets" / quote(bucket, safe="")


class Keeper:
    """Writes what has changed in the buckets, and reads what an earlier local cloud wrote."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._changed = set[tuple[str, str]]()
        self._lock = threading.Lock()
        self._has_failed = False

    @property
    def _backend(self) -> Any:
        return s3_backends[self._context.account][partitions.played()]

    def mark(self, bucket: str, key: str = "") -> None:
        """Remember a change of an object or, without a key, of the bucket."""
        self._changed.add((bucket, key))

    def keep(self, bucket: str = "", key: str = "") -> None:
        """Write all changes, and this one. A disk that is full fails no request: the objects are in memory, too."""
        if bucket:
            self.mark(bucket, key)
        with self._lock:
            while self._changed:
                one = self._changed.pop()
                try:
                    self._write(*one)
                except OSError as error:
                    self._report(*one, error)

    def restore(self) -> None:
        """Make the buckets that are kept; remove what a local cloud that was killed has left of others."""
        for directory in sorted(_directory(self._context.state, "").glob("*")):
            if not (directory / _RECORD).exists():
                shutil.rmtree(directory, ignore_errors=True)
            elif self._read(directory / _RECORD, self._restore_bucket):
                for path in sorted(directory.glob("*[0-9a-f]")):
                    self._read(path, self._restore_object)

    def _write(self, bucket: str, key: str) -> None:
        directory, found = _directory(self._context.state, bucket), self._backend.buckets.get(bucket)
        if found is None:
            shutil.rmtree(directory, ignore_errors=True)
        elif not key:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            _replace(directory / _RECORD, _line(self._bucket(found)), b"")
        elif (directory / _RECORD).exists():
            path, newest = directory / hashlib.sha256(key.encode()).hexdigest(), found.keys.get(key)
            if isinstance(newest, FakeKey):
                _replace(path, _line(self._object(newest)), newest.value)
            else:
                path.unlink(missing_ok=True)

    def _report(self, bucket: str, key: str, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._context.warn(f"s3://{bucket}/{key} will not outlive the local cloud, like others perhaps: {error}")

    def _bucket(self, found: FakeBucket) -> dict[str, Any]:
        return {
            "name": found.name,
            "region": found.region_name,
            "created": found.creation_date.isoformat(),
            "versioning": found.versioning_status,
            "encryption": found.encryption,
            "blocks": [one for one in _BLOCKS if getattr(found.public_access_block, one, False)],
            "tags": self._backend.tagger.get_tag_dict_for_resource(found.arn),
        }

    def _object(self, found: FakeKey) -> dict[str, Any]:
        return {
            "key": found.name,
            "bucket": found.bucket_name,
            "etag": found.etag.strip('"'),
            "version": found.version_id,
            "modified": found.last_modified.isoformat(),
            "storage": found.storage_class,
            "metadata": dict(found.metadata),
            "tags": self._backend.tagger.get_tag_dict_for_resource(found.arn),
            **{name: getattr(found, name) for name in _OF_KEY},
        }

    def _read(self, path: Path, restore: Callable[[Path, int, dict[str, Any]], None]) -> bool:
        """Restore what a file describes in its first line; name one that is damaged, and leave it there."""
        try:
            with path.open("rb") as file:
                line = file.readline()
            restore(path, len(line), json.loads(line))
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._context.warn(f"{path} is damaged, and what it contains is not in its bucket: {error!r}")
            return False
        return True

    def _restore_bucket(self, _path: Path, _offset: int, kept: dict[str, Any]) -> None:
        made: Any = FakeBucket(kept["name"], self._context.account, kept["region"])
        made.creation_date = datetime.datetime.fromisoformat(kept["created"])
        made.versioning_status = kept["versioning"]
        _protect(made, kept["encryption"], kept["blocks"])
        self._tag(made.arn, kept["tags"])
        self._backend.buckets[made.name] = made

    def _restore_object(self, path: Path, offset: int, kept: dict[str, Any]) -> None:
        bucket = self._backend.buckets[kept["bucket"]]
        content = _Content(path, offset)
        made: Any = FakeKey(
            kept["key"],
            # A later version replaces the file.
            content.read() if bucket.is_versioned else b"",
            self._context.account,
            bucket.region_name,
            storage=kept["storage"],
            etag=kept["etag"],
            is_versioned=bucket.is_versioned,
            version_id=kept["version"],
            bucket_name=bucket.name,
        )
        if not bucket.is_versioned:
            made._value_buffer.close()
            made._value_buffer, made.contentsize = content, path.stat().st_size - offset
        made.last_modified = datetime.datetime.fromisoformat(kept["modified"])
        made.set_metadata(kept["metadata"])
        for name in _OF_KEY:
            setattr(made, name, kept[name])
        self._tag(made.arn, kept["tags"])
        bucket.keys[made.name] = made

    def _tag(self, arn: str, tags: dict[str, str]) -> None:
        self._backend.tagger.tag_resource(arn, TaggingService.convert_dict_to_tags_input(tags))


def _protect(made: Any, encryption: dict[str, Any] | None, blocks: Iterable[str]) -> None:
    """Encrypt what the bucket gets, and block public access in these ways."""
    made.encryption = encryption
    made.public_access_block = PublicAccessBlock(*(one in blocks for one in _BLOCKS)) if blocks else None


class _Content:
    """The content of a kept object, in place of moto's own buffer: it is read when somebody asks for it."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path, self._offset, self._position = path, offset, 0

    def seek(self, position: int) -> None:
        self._position = position

    def read(self, size: int = -1) -> bytes:
        with self._path.open("rb") as file:
            file.seek(self._offset + self._position)
            content = file.read(size)
        self._position += len(content)
        return content

    def close(self) -> None:
        """Do nothing: nothing is open between two reads."""


def _line(described: dict[str, Any]) -> bytes:
    return json.dumps(described).encode() + b"\n"


def _replace(path: Path, line: bytes, content: bytes) -> None:
    """Write a temporary file and rename it: an object is whole even if the local cloud is killed meanwhile."""
    beside = path.with_suffix(".new")
    with beside.open("wb") as file:
        file.write(line)
        file.write(content)
    beside.replace(path)


def install(context: Context) -> None:
    """Restore the kept buckets, and mark what moto changes in them from now on."""
    keeper = Keeper(context)

    def create_bucket(self: S3Backend, bucket_name: str, *args: Any, **kwargs: Any) -> FakeBucket:
        made = _create(self, bucket_name, *args, **kwargs)
        _protect(made, _ENCRYPTION, _BLOCKS)
        # At once: a stack that does not retain it takes this back.
        keeper.keep(bucket_name)
        return made

    def delete_bucket(self: S3Backend, bucket_name: str) -> FakeBucket | None:
        deleted = _delete(self, bucket_name)
        keeper.mark(bucket_name)
        return deleted

    def put_object(self: S3Backend, bucket_name: str, key_name: str, *args: Any, **kwargs: Any) -> FakeKey:
        made = _put(self, bucket_name, key_name, *args, **kwargs)
        keeper.mark(bucket_name, key_name)
        return made

    def delete_object(self: S3Backend, bucket_name: str, key_name: str, *args: Any, **kwargs: Any) -> Any:
        deleted = _remove(self, bucket_name, key_name, *args, **kwargs)
        keeper.mark(bucket_name, key_name)
        return deleted

    for patch in (create_bucket, delete_bucket, put_object, delete_object):
        setattr(S3Backend, patch.__name__, patch)
    context.keep_buckets = keeper.keep
    context.at_stop(keeper.keep)
    keeper.restore()


def wrap(context: Context, app: App) -> App:
    """Return `app` so that what a request has changed is kept before it is answered. `iam.wrap` parses the call."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answered = app(environ, start_response)
        call: Call = environ[calls.PARSED]
        if call.service == "s3":
            changed = call.params if call.operation in _DESCRIBE else {}
            context.keep_buckets(str(changed.get("Bucket", "")), str(changed.get("Key", "")))
        return answered

    return answer
