"""Copies from S3 that are cut off, changed or damaged: a server of the test shows what was requested."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest
from fleet_fakes import until

from phalanx.node.sigv4 import Credentials
from phalanx.objects import download as module
from phalanx.objects import multipart, s3_client, staging
from phalanx.objects.download import CopyError, Progress, download
from phalanx.objects.keys_as_files import NamesError
from phalanx.objects.s3_client import Answer, Bucket, S3Error, connect

PIECE = 1000
KEYS = Credentials("key", "secret")


class Server:
    """An S3 with one bucket. `statuses` are answered first; `broken` keys are sent with other content."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.statuses: list[int] = []
        self.broken: set[str] = set()
        self.changed: set[str] = set()
        self.reads: list[tuple[str, int]] = []
        self.most_reads = 1000
        self.refuses = b""
        self.held: threading.Event | None = None
        self.waits_after = 0

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        key = unquote(url.path).removeprefix("/bucket").lstrip("/")
        if self.statuses:
            self.send(handler, self.statuses.pop(0), b"<Error><Code>SlowDown</Code></Error>")
        elif url.path == "/credentials":
            answer = {"AccessKeyId": "a", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}
            self.send(handler, 200, json.dumps(answer).encode())
        elif not key:
            self.send(handler, 200, self.listing(parse_qs(url.query)))
        elif key in self.changed:
            self.send(handler, 412, b"")
        else:
            self.read(handler, key)

    def listing(self, query: dict[str, list[str]]) -> bytes:
        """List two objects at a time."""
        after = query.get("continuation-token", [""])[0]
        keys = [key for key in sorted(self.objects) if key.startswith(query["prefix"][0]) and key > after]
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size><ETag>&quot;{etag(self.objects[key])}"
            "&quot;</ETag><LastModified>2026-01-02T03:04:05.000Z</LastModified></Contents>"
            for key in keys[:2]
        )
        more = f"<NextContinuationToken>{keys[1]}</NextContinuationToken>" if len(keys) > 2 else ""
        return f'<R xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{entries}{more}</R>'.encode()

    def read(self, handler: BaseHTTPRequestHandler, key: str) -> None:
        content = self.objects[key]
        if key in self.broken:
            content = content[::-1]
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        start, end = (int(found[1]), int(found[2]) + 1) if found else (0, len(content))
        if handler.command == "GET":
            self.reads.append((key, start))
            if self.refuses:
                self.send(handler, 403, self.refuses)
                return
            if self.held and len(self.reads) > self.waits_after:
                self.held.wait(60)
            if len(self.reads) > self.most_reads:
                self.send(handler, 403, b"<Error><Code>AccessDenied</Code></Error>")
                return
        self.send(handler, 200, content[start:end])

    def send(self, handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)


def etag(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def server(monkeypatch) -> Iterator[tuple[Server, Bucket]]:
    monkeypatch.setattr(module, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(s3_client.time, "sleep", lambda _: None)
    served = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            served.answer(self)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield served, Bucket("bucket", "us-east-1", f"http://127.0.0.1:{listener.server_port}")
        listener.shutdown()


def copy(bucket: Bucket, directory: Path) -> Progress:
    return download(bucket, "p/", str(directory), lambda: KEYS, lambda _: None)


def test_all_pages_are_copied_and_nothing_is_copied_twice(server, tmp_path):
    served, bucket = server
    served.objects = {f"p/{name}": name.encode() for name in "abcde"} | {"q": b"", "p/": b""}
    assert copy(bucket, tmp_path).objects == 5
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict(zip("abcde", "abcde", strict=True))
    served.reads.clear()
    copy(bucket, tmp_path)
    assert served.reads == []


def test_a_large_object_goes_on_where_it_was_cut_off(server, tmp_path):
    served, bucket = server
    served.objects = {"p/large": bytes(range(256)) * 40}
    served.most_reads = 4
    with pytest.raises(S3Error, match=r"s3://bucket/p/large: no permission"):
        copy(bucket, tmp_path)
    assert not (tmp_path / "large").exists()
    fetched = set(served.reads[:4])
    served.reads, served.most_reads = [], 1000
    copy(bucket, tmp_path)
    assert not fetched & set(served.reads)
    assert len(served.reads) == 11 - 4
    assert [path.name for path in tmp_path.iterdir()] == ["large"]
    assert (tmp_path / "large").read_bytes() == served.objects["p/large"]


@pytest.mark.parametrize("size", [PIECE // 2, PIECE * 3])
def test_damaged_content_does_not_get_its_name_and_is_fetched_again(server, tmp_path, size):
    served, bucket = server
    served.objects = {"p/a": bytes(range(250)) * (size // 250)}
    served.broken = {"p/a"}
    with pytest.raises(CopyError, match="p/a arrived with a wrong checksum"):
        copy(bucket, tmp_path)
    assert list(tmp_path.iterdir()) == []
    served.broken.clear()
    copy(bucket, tmp_path)
    assert (tmp_path / "a").read_bytes() == served.objects["p/a"]


def test_an_object_that_changes_meanwhile_is_not_mixed(server, tmp_path):
    served, bucket = server
    served.objects, served.changed = {"p/a": b"1"}, {"p/a"}
    with pytest.raises(S3Error, match=r"p/a: it changed meanwhile"):
        copy(bucket, tmp_path)


def test_nothing_stays_of_the_content_that_an_object_had_when_a_copy_was_cut_off(server, tmp_path):
    served, bucket = server
    served.objects = {"p/large": b"old" * 1000, "p/other": b"other" * 1000}
    served.most_reads = 6
    with pytest.raises(S3Error, match="no permission"):
        copy(bucket, tmp_path)
    (tmp_path / ".phalanx-mine").write_text("not a copy's")
    served.most_reads, served.objects["p/large"] = 1000, b"new" * 1000
    copy(bucket, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"large", "other", ".phalanx-mine"}
    assert (tmp_path / "large").read_bytes() == b"new" * 1000


def test_empty_objects_are_empty_files_and_their_keys_may_look_like_anything(server, tmp_path):
    served, bucket = server
    names = ("empty", "-rf", " ", "~", "$(id)", "a\\b", "é", ".hidden")
    served.objects = {f"p/{name}": b"" for name in names} | {"p/sub/": b""}
    assert copy(bucket, tmp_path).objects == len(names)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(names, b"")


def test_content_under_a_directory_s_key_is_not_left_out_silently(server, tmp_path):
    served, bucket = server
    served.objects = {"p/a": b"1", "p/sub/": b"content"}
    with pytest.raises(NamesError, match=r"'sub/' has content, and ends with '/' as a directory does"):
        copy(bucket, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_archived_object_is_called_that(server, tmp_path):
    served, bucket = server
    served.objects = {"p/a": b"1"}
    served.refuses = b"<Error><Code>InvalidObjectState</Code><Message>The operation is not valid</Message></Error>"
    with pytest.raises(S3Error, match=r"s3://bucket/p/a: it is archived; restore it in S3 first"):
        copy(bucket, tmp_path)


def test_a_disk_that_is_full_meanwhile_keeps_what_is_complete(server, tmp_path, monkeypatch):
    served, bucket = server
    served.objects = {"p/large": b"x" * 3000}
    room, write = [2], module._write

    def limited(path: str, offset: int, content: bytes) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, offset, content)

    monkeypatch.setattr(module, "_write", limited)
    with pytest.raises(OSError, match="No space left on device"):
        copy(bucket, tmp_path)
    assert not (tmp_path / "large").exists()
    room[0] = 1
    copy(bucket, tmp_path)
    assert (tmp_path / "large").read_bytes() == b"x" * 3000


def test_a_killed_stage_is_taken_up_again_where_it_was(server, tmp_path, monkeypatch):
    """As the job runs: its own process, which the kill leaves no time to tidy up, on a node's own disks."""
    served, bucket = server
    large = os.urandom(5 << 20) * 8
    served.objects = {"p/large": large, "p/small": b"s"}
    served.held = threading.Event()
    task = {"name": "pets", "bucket": "bucket", "prefix": "p/", "region": "us-east-1", "endpoint": bucket.endpoint}
    (tmp_path / staging.TASKS).write_text(json.dumps([{**task, "directory": "data/pets"}]))
    env = {**os.environ, "PHALANX_SCRATCH": str(tmp_path / "scratch"), "PYTHONPATH": os.pathsep.join(sys.path)}
    env |= {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{bucket.endpoint}/credentials", "AWS_ENDPOINT_URL": bucket.endpoint}
    command = [sys.executable, "-m", "phalanx.objects.staging"]
    place = tmp_path / "scratch" / "data" / "pets"
    served.waits_after = 2
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL) as first:
        until(lambda: sum(len(p.read_text().split()) for p in place.glob("*.ranges")) >= 2, "two ranges on the disk")
        first.kill()
    served.held.set()
    fetched = {int(line) for path in place.glob("*.ranges") for line in path.read_text().split()}
    served.reads.clear()
    again = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (again.returncode, again.stderr) == (0, "")
    assert f"pets is in {place}: 2 objects, 40.0 MiB" in again.stdout
    assert {path.name for path in place.iterdir()} == {"large", "small"}
    assert (place / "large").read_bytes() == large
    assert len(fetched) >= 2 and not fetched & {start for key, start in served.reads if key == "p/large"}


def test_s3_may_be_slow_for_a_while_and_not_for_ever(server, tmp_path):
    served, bucket = server
    served.objects = {"p/a": b"1"}
    served.statuses = [503, 500, 429]
    assert copy(bucket, tmp_path).objects == 1
    served.statuses = [503] * 20
    with pytest.raises(S3Error, match="SlowDown"):
        copy(bucket, tmp_path / "b")


def test_a_proxy_that_answers_in_place_of_s3_is_named(server, tmp_path):
    served, bucket = server
    served.listing = lambda _: b"<html>Log in to the network<br></html>"
    with pytest.raises(S3Error, match=rf"{bucket.endpoint} does not answer as S3 does"):
        copy(bucket, tmp_path)


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:{}", "127.0.0.1:{}"])
def test_a_proxy_is_used_with_and_without_a_scheme(proxy, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("https_proxy", proxy.format(listening.getsockname()[1]))
        monkeypatch.delenv("no_proxy", raising=False)
        threading.Thread(target=_refuse_one, args=(listening,)).start()
        with pytest.raises(OSError, match="Tunnel connection failed: 403"):
            connect("https://s3.us-east-1.amazonaws.com").connect()


def _refuse_one(listening: socket.socket) -> None:
    answered, _ = listening.accept()
    with answered:
        assert answered.recv(4096).startswith(b"CONNECT s3.us-east-1.amazonaws.com:443 ")
        answered.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")


def test_a_disk_without_room_is_refused_first(server, tmp_path, monkeypatch):
    served, bucket = server
    served.objects = {"p/a": b"1" * 3000}
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2000}))
    with pytest.raises(CopyError, match=r"has 2\.0 KiB free, and 2\.9 KiB are needed"):
        copy(bucket, tmp_path)
    assert served.reads == []


def kept_upload(parts: dict[int, bytes], sent: list[tuple[str, bytes]], end: bytes) -> Callable[..., Answer]:
    """Return a bucket's answers: it keeps an unfinished upload of `large` with these parts."""
    root = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    begun = f"<R {root}><Upload><Key>large</Key><UploadId>u</UploadId></Upload></R>"

    def call(self: object, method: str, key: str, query: Mapping[str, str], headers: object = None, body: bytes = b""):
        if method == "PUT":
            parts[int(query["partNumber"])] = body
        if method == "POST":
            sent.append((key, body))
            return Answer(200, {}, end)
        if "uploads" in query:
            return Answer(200, {}, begun.encode())
        tags = (f"<Part><PartNumber>{n}</PartNumber><ETag>{etag(part)}</ETag></Part>" for n, part in parts.items())
        return Answer(200, {}, f"<R {root}>{''.join(tags)}</R>".encode())

    return call


DONE = b"<CompleteMultipartUploadResult/>"


def test_a_node_without_disks_of_its_own_has_no_place_for_a_copy_there(monkeypatch):
    monkeypatch.delenv("PHALANX_SCRATCH", raising=False)
    assert staging.place("/efs/data/pets") == "/efs/data/pets"
    with pytest.raises(CopyError, match=r"has no NVMe disks of its own: \$PHALANX_SCRATCH is not set"):
        staging.place("data/pets")


def test_parts_of_a_longer_file_that_an_earlier_upload_left_are_not_part_of_the_object(tmp_path, monkeypatch):
    sent: list[tuple[str, bytes]] = []
    earlier = {1: b"aaaa", 2: b"old.", 3: b"rest"}
    monkeypatch.setattr(multipart, "PART_BYTES", 4)
    monkeypatch.setattr(s3_client.Client, "call", kept_upload(earlier, sent, DONE))
    (tmp_path / "large").write_bytes(b"aaaabb")
    multipart.upload(Bucket("bucket", "", ""), str(tmp_path / "large"), "large", lambda: KEYS, lambda _: None)
    ((_, body),) = sent
    assert re.findall(r"<PartNumber>(\d)</PartNumber><ETag>&quot;(\w+)", body.decode()) == [
        ("1", etag(b"aaaa")),
        ("2", etag(b"bb")),
    ]


def test_an_upload_that_s3_fails_to_complete_after_it_has_begun_to_answer_is_an_error(tmp_path, monkeypatch):
    refused = b"\n<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"
    monkeypatch.setattr(multipart, "PART_BYTES", 4)
    monkeypatch.setattr(s3_client.Client, "call", kept_upload({}, [], refused))
    (tmp_path / "large").write_bytes(b"aaaabb")
    with pytest.raises(S3Error, match=r"s3://bucket/large: We encountered an internal error"):
        multipart.upload(Bucket("bucket", "", ""), str(tmp_path / "large"), "large", lambda: KEYS, lambda _: None)
