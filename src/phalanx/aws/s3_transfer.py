"""Copies between this machine and S3, with the user's own rights: `phalanx data put`, `get`, `ls` and `rm`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.errors import PhalanxError
from phalanx.node.sigv4 import Credentials
from phalanx.objects import download, multipart, trees
from phalanx.objects.keys_as_files import NamesError
from phalanx.objects.s3_client import Bucket, Client, Object, S3Error

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_URL = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<key>.*))?", re.DOTALL)


class S3TransferError(PhalanxError):
    """A copy from or to S3 was refused, or ended early. What is complete stays."""

    code = "not-copied"


@dataclass(frozen=True)
class Copied:
    """What is at its place after a copy; `unchanged`: how many objects were there before it."""

    place: str
    objects: int
    bytes: int
    left_out: tuple[str, ...] = ()
    unchanged: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether everything but links is there: S3 has none."""
        return all(one.endswith(f": {trees.LINK}") for one in self.left_out)


class Store:
    """A bucket, with the rights of the user who runs phalanx; with `make`, a local cloud makes it.

    Methods raise S3TransferError.
    """

    def __init__(self, cloud: Aws, url: str, make: bool = False) -> None:
        found = _URL.fullmatch(url)
        if found is None:
            raise S3TransferError(
                f"'{url}' is not an S3 URL", "Write one such as s3://my-bucket/prefix.", code="not-s3-url"
            )
        self.url, self.key = url, found["key"] or ""
        self._keys: Callable[[], Credentials] = cloud.user_keys
        cloud.site.require_bucket(found["bucket"], make)
        self._bucket = Bucket(found["bucket"], cloud.region, cloud.s3_endpoint())

    def get(self, destination: Path, show: download.Show) -> Copied:
        """Copy what is at the URL, one object or all below it, into a directory."""
        with _explained():
            is_one = any(one.key == self.key for one in self.objects())
            place = self.key if is_one or self.key[-1:] in ("", "/") else f"{self.key}/"
            total = download.download(self._bucket, place, str(destination), self._keys, show)
        return Copied(str(destination), total.objects, total.bytes, unchanged=total.unchanged)

    def put(self, source: Path, show: download.Show) -> Copied:
        """Copy a file or a directory to the URL; below it if the URL ends with a slash."""
        key = f"{self.key}{source.resolve().name}" if source.is_file() and self.key[-1:] in ("", "/") else self.key
        if source.is_dir():
            key = f"{key.rstrip('/')}/" if key else ""
        with _explained():
            total, left_out = multipart.upload(self._bucket, str(source), key, self._keys, show)
        return Copied(f"s3://{self._bucket.name}/{key}", total.objects, total.bytes, tuple(left_out), total.unchanged)

    def objects(self) -> list[Object]:
        """Return what is at the URL: one object, or all below it."""
        with _explained(), self._client() as client:
            return [one for one in client.objects(self.key) if self._is_there(one)]

    def remove(self, objects: list[Object]) -> None:
        """Delete these objects."""
        with _explained(), self._client() as client:
            for one in objects:
                client.call("DELETE", one.key, {})

    def _is_there(self, one: Object) -> bool:
        folder = self.key if self.key[-1:] in ("", "/") else f"{self.key}/"
        return one.key == self.key or one.key.startswith(folder)

    @contextmanager
    def _client(self) -> Iterator[Client]:
        client = Client(self._bucket, self._keys)
        try:
            yield client
        finally:
            client.close()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (S3Error, download.CopyError, NamesError) as error:
        raise S3TransferError(str(error)) from error
    except OSError as error:
        raise S3TransferError(f"{error.filename or 'the copy failed'}: {error.strerror or error}") from error
