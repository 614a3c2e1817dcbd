"""Compares files with the ETags of objects, which are MD5s unless a key of the customer's encrypts them."""

from __future__ import annotations

import hashlib
import re
from typing import Iterator, Mapping, Protocol

from phalanx.objects.s3_client import Client, Object

_MD5 = re.compile(r"[0-9a-f]{32}(?:-(?P<parts>[0-9]+))?")
# docs/aws-behaviour.md 12.3
_NO_MD5 = ("x-amz-server-side-encryption-customer-algorithm", "x-amz-server-side-encryption-aws-kms-key-id")
_BLOCK_BYTES = 1 << 20


class Readable(Protocol):
    """What has a file's content."""

    def read(self, size: int = ..., /) -> bytes: ...


def is_right(client: Client, item: Object, headers: Mapping[str, str], content: Readable) -> bool:
    """Whether the content is the object's, as far as its ETag shows it. `headers` are S3's for this object."""
    known = _MD5.fullmatch(item.etag)
    if known is None or any(name in headers for name in _NO_MD5):
        return True
    if known["parts"] is None:
        return md5_of(content, item.size) == item.etag
    part_bytes = int(client.head(item.key, part=1).get("content-length", 0))
    if part_bytes < 1 or -(-item.size // part_bytes) != int(known["parts"]):
        return True  # parts of several sizes
    return etag_of_parts(content, item.size, part_bytes) == item.etag


def etag_of_parts(content: Readable, size: int, part_bytes: int) -> str:
    """Return the ETag of an object that was uploaded in parts of this size."""
    digests = [md5_of(content, min(part_bytes, size - offset)) for offset in range(0, size, part_bytes)]
    return f"{_md5(bytes.fromhex(''.join(digests))).hexdigest()}-{len(digests)}"


def md5_of(content: Readable, length: int) -> str:
    """Return the MD5 of the next `length` bytes."""
    digest = _md5(b"")
    for block in _blocks(content, length):
        digest.update(block)
    return digest.hexdigest()


def _md5(content: bytes) -> "hashlib._Hash":
    return hashlib.md5(content, usedforsecurity=False)


def _blocks(content: Readable, length: int) -> Iterator[bytes]:
    while length > 0:
        block = content.read(min(_BLOCK_BYTES, length))
        if not block:
            return
        length -= len(block)
        yield block
