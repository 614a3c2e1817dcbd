"""A job's directory as it is kept in S3: whole copies, of which the newest counts, and one job that makes them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from phalanx.node.sigv4 import Credentials
from phalanx.objects import generations
from phalanx.objects.generations import LIST, Copy, Shelf, TakenError
from phalanx.objects.s3_client import Bucket, Client, S3Error
from phalanx.objects.snapshot import Home
from phalanx.runner.verbs.copier import Copier

JOBS = ("261121-075500-abcdef", "261121-075501-abcdef")
LARGE = os.urandom((8 << 20) + 1)  # two parts
KEYS = Credentials("key", "secret")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def s3(endpoint, tmp_path) -> Any:
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    client.create_bucket(Bucket=tmp_path.name.replace("_", "-")[:60].strip("-") + "0")
    return client


@pytest.fixture
def bucket(s3, endpoint, tmp_path) -> Bucket:
    return Bucket(tmp_path.name.replace("_", "-")[:60].strip("-") + "0", "us-east-1", endpoint)


class Job:
    """What the process of a job does with a directory, one step at a time."""

    def __init__(self, bucket: Bucket, root: Path, job: str = JOBS[0]) -> None:
        self.home = Home(str(root), f"runs/mnist/{Copy(job=job).name}/")
        self.shelf = Shelf(bucket, "runs/mnist/", lambda: KEYS, job)
        self.copier = Copier(self.home, self.shelf)
        self.files = Path(self.home.files)

    def begin(self) -> Job:
        assert self.copier.begin() == ""
        return self

    def copy(self) -> None:
        assert self.copier.copy_changes()

    def write(self, **files: bytes) -> None:
        for name, content in files.items():
            path = self.files / name.replace("__", "/")
            path.parent.mkdir(exist_ok=True)
            path.with_suffix(".new").write_bytes(content)
            path.with_suffix(".new").replace(path)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def keys(s3: Any, bucket: Bucket) -> list[str]:
    return [one["Key"] for one in s3.list_objects_v2(Bucket=bucket.name).get("Contents", [])]


def test_another_cluster_goes_on_from_the_newest_copy(s3, bucket, tmp_path):
    first = Job(bucket, tmp_path / "one").begin()
    first.write(model=b"1", sub__optimizer=LARGE, empty=b"")
    (first.files / "latest").symlink_to("sub/optimizer")
    first.copy()
    first.write(model=b"2")
    (first.files / "empty").unlink()
    first.copy()
    second = Job(bucket, tmp_path / "two", JOBS[1]).begin()
    assert contents(second.files) == {"model": b"2", "sub/optimizer": LARGE, "latest": LARGE}
    assert (second.files / "latest").readlink() == Path("sub/optimizer")
    # What did not change is not sent again, and nothing old is left.
    assert keys(s3, bucket) == [
        f"runs/mnist/000001-{JOBS[0]}/sub/optimizer",
        f"runs/mnist/000002-{JOBS[0]}/model",
        f"runs/mnist/{LIST}",
    ]
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket.name)


def test_names_that_s3_can_t_hold_keep_no_other_file_from_its_copy(bucket, tmp_path, capsys):
    first = Job(bucket, tmp_path / "one").begin()
    first.write(model=b"1")
    for name in (os.fsdecode(b"\xff"), "a\nb", "/".join(["d" * 250] * 4)):
        (first.files / name).parent.mkdir(parents=True, exist_ok=True)
        (first.files / name).write_bytes(b"odd")
    (first.files / os.fsdecode(b"\xfe")).symlink_to("model")
    os.mkfifo(first.files / "pipe")
    first.copy()
    said = capsys.readouterr().out
    assert said.count("not in s3://") == 5
    assert all(repr(name) in said for name in (os.fsdecode(b"\xff"), "a\nb", "pipe"))
    first.copy()
    assert capsys.readouterr().out == "", "it is said once"
    second = Job(bucket, tmp_path / "two", JOBS[1]).begin()
    assert contents(second.files) == {"model": b"1"}


def test_links_that_lead_out_of_the_directory_keep_no_later_job_from_it(bucket, tmp_path):
    first = Job(bucket, tmp_path / "one").begin()
    first.write(sub__step5=b"5")
    (first.files / "latest").symlink_to(first.files / "sub/step5")
    (first.files / "dataset").symlink_to("/efs/dataset")
    first.copy()
    second = Job(bucket, tmp_path / "two", JOBS[1]).begin()
    assert (second.files / "latest").readlink() == Path("sub/step5")
    assert contents(second.files) == {"sub/step5": b"5", "latest": b"5"} and not (second.files / "dataset").is_symlink()
    first_number = second.shelf.newest().number
    second.copy()
    assert second.shelf.newest().number == first_number, "nothing has changed"


def test_the_same_directory_is_not_replaced_by_its_own_older_copy(bucket, tmp_path):
    first = Job(bucket, tmp_path / "one").begin()
    first.write(model=b"1")
    first.copy()
    first.write(model=b"2")
    again = Job(bucket, tmp_path / "one", JOBS[1]).begin()
    assert contents(again.files) == {"model": b"2"}
    again.copy()
    assert again.shelf.newest().number == 2


def test_a_copy_that_is_cut_short_leaves_the_last_one(s3, bucket, tmp_path, monkeypatch):
    first = Job(bucket, tmp_path / "one").begin()
    first.write(model=b"1", large=LARGE)
    first.copy()
    first.write(model=b"2", large=LARGE[::-1])
    own, calls = Client.call, []

    def broken(self: Client, method: str, key: str, *more: Any, **named: Any) -> Any:
        calls.append(method)
        if method == "PUT" and calls.count("PUT") >= 3:
            raise S3Error("the network is gone")
        return own(self, method, key, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Client, "call", broken)
        with pytest.raises(S3Error):
            first.copy()
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket.name)
    assert contents(Job(bucket, tmp_path / "two", JOBS[1]).begin().files) == {"model": b"1", "large": LARGE}


def test_a_job_that_another_one_has_followed_keeps_no_copy_any_more(bucket, tmp_path):
    first = Job(bucket, tmp_path / "one").begin()
    first.write(model=b"1")
    first.copy()
    second = Job(bucket, tmp_path / "two", JOBS[1]).begin()
    first.write(model=b"old")
    with pytest.raises(TakenError, match=f"job {JOBS[1]} keeps its checkpoints in s3://.*/runs/mnist/ now"):
        first.copy()
    second.write(model=b"2")
    second.copy()
    assert contents(Job(bucket, tmp_path / "three").begin().files) == {"model": b"2"}


def test_objects_of_the_user_below_the_prefix_stay(s3, bucket, tmp_path):
    mine = ["runs/mnist/notes.txt", "runs/mnist/000001-mine/x", "runs/mnist2/model"]
    for key in mine:
        s3.put_object(Bucket=bucket.name, Key=key, Body=b"x")
    job = Job(bucket, tmp_path / "one").begin()
    for content in (b"1", b"2"):
        job.write(model=content)
        job.copy()
    assert set(mine) < set(keys(s3, bucket)) and len(keys(s3, bucket)) == len(mine) + 2


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../x": {"key": "runs/mnist/a", "size": 1, "etag": "e"}}},
        {"files": {"x": {"key": "elsewhere/a", "size": 1, "etag": "e"}}},
        {"links": {"x": "/etc/passwd"}},
        {"links": {"sub/x": "../../y"}},
        {"links": {"sub/here": "..", "x": "sub/here/../y"}},
        {"job": "x/../../../../elsewhere"},
        {"files": []},
        {"number": "x"},
    ],
)
def test_a_list_that_leads_elsewhere_is_refused(s3, bucket, tmp_path, change):
    document = {"owner": "x", "number": 1, "job": JOBS[0], "saved_at": 1.0, "files": {}, "links": {}, **change}
    s3.put_object(Bucket=bucket.name, Key=f"runs/mnist/{LIST}", Body=json.dumps(document).encode())
    assert "checkpoint.json is not a list of checkpoints" in Job(bucket, tmp_path / "one").copier.begin()
    assert not (tmp_path / "x").exists()


def test_a_list_whose_first_answer_was_lost_is_known_as_ones_own(bucket, tmp_path, monkeypatch):
    job = Job(bucket, tmp_path / "one").begin()
    job.write(model=b"1")
    own = Client.call

    def twice(self: Client, method: str, key: str, *more: Any, **named: Any) -> Any:
        if method == "PUT" and key.endswith(LIST):
            own(self, method, key, *more, **named)
        return own(self, method, key, *more, **named)

    monkeypatch.setattr(generations.Client, "call", twice)
    job.copy()
    job.write(model=b"2")
    job.copy()
    assert job.shelf.newest().number == 2


def test_a_snapshot_is_one_moment_while_files_are_replaced(tmp_path, monkeypatch):
    """A job saves again while the first of the links is made."""
    home, own, saves = Home(str(tmp_path)), os.link, []
    Path(home.files).mkdir()

    def save(content: str) -> None:
        for name in ("data", "index"):
            (tmp_path / "new").write_text(content)
            (tmp_path / "new").replace(Path(home.files) / name)

    def link(source: str, target: str) -> None:
        own(source, target)
        if not saves:
            saves.append(source)
            save("2")

    save("1")
    monkeypatch.setattr(os, "link", link)
    taken = home.snapshot({})
    assert taken and {Path(one).read_text() for one in taken[1].values()} == {"2"} and len(saves) == 1
    monkeypatch.setattr(os, "link", lambda source, target: (own(source, target), save("x")))
    assert home.snapshot({}) is None
