"""Copies a file or a directory into a bucket, in parts that several processes send.

What is there with the same content is not sent again, and neither is a part of a large file that an earlier upload
sent: S3 keeps the parts of an upload until it is completed or aborted.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Callable, Dict, Iterator, List, Tuple

from phalanx import guest_file
from phalanx.guest_file import Content
from phalanx.objects import checksums, keys_as_files, trees
from phalanx.objects.download import CopyError, Progress, Show
from phalanx.objects.s3_client import XML, Bucket, Client, S3Error, error_of
from phalanx.objects.workers import Keys, in_threads, spread

PART_BYTES = 8 << 20
_MOST_PARTS = 10_000


@dataclass(frozen=True)
class Part:
    """A file, or a part of it that belongs to an upload. `number` counts from 1; it is 0 for a whole file."""

    path: str
    key: str
    offset: int
    length: int
    number: int = 0
    upload_id: str = ""


@dataclass(frozen=True)
class File:
    """A file here, and the key that it gets."""

    path: str
    key: str
    size: int


def upload(bucket: Bucket, source: str, prefix: str, keys: Keys, show: Show) -> Tuple[Progress, List[str]]:
    """Copy a file to the key `prefix`, or a directory's files below it.

    Return the total, and the names of what can't be copied, each with the reason. Raises CopyError, S3Error, OSError.
    """
    files, left_out = survey(source, prefix)
    total = Progress(len(files), len(files), sum(one.size for one in files), sum(one.size for one in files))
    with closing(Client(bucket, keys)) as client:
        missing = _missing(client, prefix, files)
        uploads = {one: _begun(client, one) or _begin(client, one) for one in missing if one.size > PART_BYTES}
        parts = [part for one, upload_id in uploads.items() for part in _parts_left(client, one, upload_id)]
        parts += [Part(one.path, one.key, 0, one.size) for one in missing if one not in uploads]
        sent = total.bytes - sum(part.length for part in parts)
        objects = total.objects - len(missing)
        for part in spread(_send, bucket, parts, keys, lambda part: part.length):
            objects, sent = objects + (part.number == 0), sent + part.length
            show(Progress(objects, total.objects, sent, total.bytes))
        for one, upload_id in uploads.items():
            _complete(client, one, upload_id)
    return replace(total, unchanged=len(files) - len(missing)), left_out


def send(bucket: Bucket, files: List[File], keys: Keys) -> None:
    """Copy files to keys that are new, only from this process. A failure leaves no part of an upload, a kill may.

    Raises CopyError, S3Error, OSError.
    """
    with closing(Client(bucket, keys)) as client:
        uploads: Dict[File, str] = {}
        try:
            for one in files:
                if one.size > PART_BYTES:
                    uploads[one] = _begin(client, one)
            parts = [part for one, upload_id in uploads.items() for part in _parts(one, upload_id)]
            parts += [Part(one.path, one.key, 0, one.size) for one in files if one not in uploads]
            for _ in in_threads(_send, bucket, parts, keys, lambda part: part.length):
                pass
            for one in list(uploads):
                _complete(client, one, uploads.pop(one))
        finally:
            for one, upload_id in uploads.items():
                with suppress(S3Error):
                    client.call("DELETE", one.key, {"uploadId": upload_id})


def survey(source: str, prefix: str) -> Tuple[List[File], List[str]]:
    """Return the regular files at `source` with their keys, and what can't be copied, each with the reason."""
    return guest_file.answering(source, lambda name: _survey(source, prefix, name))


def _survey(source: str, prefix: str, name_it: Callable[[str], object]) -> Tuple[List[File], List[str]]:
    if os.path.isfile(source):
        return [File(source, prefix, os.path.getsize(source))], []
    files: List[File] = []
    left_out: List[str] = []

    def leave_out(path: str, reason: str) -> None:
        left_out.append(f"{os.path.relpath(path, source)}: {reason}")

    for directory, names in trees.walk(source, lambda path, error: leave_out(path, str(error.strerror)), name_it):
        for name in sorted(names):
            path = os.path.join(directory, name)
            name_it(path)
            relative = os.path.relpath(path, source)
            status = trees.status_of(path)
            reason = trees.unread(path, status) or keys_as_files.unfit(relative, prefix)
            if reason or not status:
                leave_out(path, reason)
            else:
                files.append(File(path, prefix + relative, status.st_size))
    if not files:
        why = f" that can be copied: {left_out[0]}" if left_out else ""
        raise CopyError(f"{source} has no files{why}")
    return files, left_out


def part_bytes(size: int) -> int:
    """Return the size of the parts of a file: S3 takes 10,000 of them (docs/aws-behaviour.md 12.3)."""
    return max(PART_BYTES, -(-size // _MOST_PARTS))


def _missing(client: Client, prefix: str, files: List[File]) -> List[File]:
    there = {one.key: one for one in client.objects(prefix)}
    return [one for one in files if one.key not in there or there[one.key].etag != _etag(one, there[one.key].size)]


def _etag(file: File, size_there: int) -> str:
    """Return the ETag that the file's object has; "" without reading it if the object has another size."""
    if file.size != size_there:
        return ""
    content = Content(file.path)
    if file.size <= PART_BYTES:
        return checksums.md5_of(content, file.size)
    return checksums.etag_of_parts(content, file.size, part_bytes(file.size))


def _begun(client: Client, file: File) -> str:
    """Return the newest upload of this key that was begun and not completed; "" if there is none."""
    page = client.document("GET", "", {"uploads": "", "prefix": file.key})
    begun = [one for one in page.iter(f"{XML}Upload") if one.findtext(f"{XML}Key") == file.key]
    return begun[-1].findtext(f"{XML}UploadId", "") if begun else ""


def _begin(client: Client, file: File) -> str:
    return client.document("POST", file.key, {"uploads": ""}).findtext(f"{XML}UploadId", "")


def _parts_left(client: Client, file: File, upload_id: str) -> Iterator[Part]:
    """Yield the parts that S3 does not have with the file's content."""
    there = _etags(client, file, upload_id)
    for part in _parts(file, upload_id):
        if part.number not in there or there[part.number] != _md5(part):
            yield part


def _md5(part: Part) -> str:
    return checksums.md5_of(Content(part.path, offset=part.offset), part.length)


def _parts(file: File, upload_id: str) -> Iterator[Part]:
    length = part_bytes(file.size)
    for number, offset in enumerate(range(0, file.size, length), 1):
        yield Part(file.path, file.key, offset, min(length, file.size - offset), number, upload_id)


def _etags(client: Client, file: File, upload_id: str) -> Dict[int, str]:
    """Return the ETags of an upload's parts by number."""
    found: Dict[int, str] = {}
    marker = "0"
    while marker:
        query = {"uploadId": upload_id, "part-number-marker": marker}
        page = client.document("GET", file.key, query)
        for part in page.iter(f"{XML}Part"):
            found[int(part.findtext(f"{XML}PartNumber", "0"))] = part.findtext(f"{XML}ETag", "").strip('"')
        is_more = page.findtext(f"{XML}IsTruncated") == "true"
        marker = page.findtext(f"{XML}NextPartNumberMarker", "") if is_more else ""
    return found


def _send(client: Client, part: Part) -> None:
    content = Content(part.path, offset=part.offset).read(part.length)
    if len(content) != part.length:
        raise CopyError(f"{part.path} became shorter while it was copied")
    query = {"partNumber": str(part.number), "uploadId": part.upload_id} if part.number else {}
    client.call("PUT", part.key, query, body=content)


def _complete(client: Client, file: File, upload_id: str) -> None:
    """Make the object of the file's parts, without those that an upload of a longer file has left."""
    count = -(-file.size // part_bytes(file.size))
    etags = sorted((n, etag) for n, etag in _etags(client, file, upload_id).items() if n <= count)
    parts = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>&quot;{e}&quot;</ETag></Part>" for n, e in etags)
    document = f'<CompleteMultipartUpload xmlns="{XML[1:-1]}">{parts}</CompleteMultipartUpload>'
    answer = client.call("POST", file.key, {"uploadId": upload_id}, body=document.encode())
    # S3 begins to answer before it has finished, so a failure has the status 200, too (API_CompleteMultipartUpload).
    code, message = error_of(answer.body.strip())
    if code:
        raise S3Error(f"{client.url(file.key)}: {message or code}", answer.status, code)
