"""A directory on this machine whose file system does not answer, as on a server that is away."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import threading

import pytest
from click.testing import CliRunner
from fake_nodes import FakeCluster
from hanging_files import LOOKUP, READ, READ_DIRECTORY, a_hanging_file_system

from localcloud.nodes import cgroups, kernel
from phalanx import guest_file
from phalanx.cli import data_shards
from phalanx.code import code_tree, commit
from phalanx.errors import JobError, SpecError
from phalanx.jobs.job import JobSpec, submit
from phalanx.jobs.transfer import TransferError, put
from phalanx.node import proc_files
from phalanx.node.sigv4 import Credentials
from phalanx.objects import multipart, s3_client
from phalanx.objects.s3_client import Answer, Bucket
from phalanx.packing.pack import pack, plan
from phalanx.packing.samples import PackError, find
from phalanx.spec import spec_yaml

_SILENT = "its file system does not answer"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(guest_file, "_SILENT_S", 0.2)


@pytest.mark.parametrize("request_", [LOOKUP, READ_DIRECTORY])
def test_a_directory_of_code_that_does_not_answer_is_named(tmp_path, request_):
    (tmp_path / "code").mkdir()
    with (
        a_hanging_file_system(tmp_path / "code" / "away", request_),
        pytest.raises(JobError, match=r"/code/away.*: its file system does not answer"),
    ):
        code_tree.scan(tmp_path / "code")


def test_a_phalanx_yaml_that_does_not_answer_is_named(tmp_path):
    with (
        a_hanging_file_system(tmp_path / "away", LOOKUP),
        pytest.raises(SpecError, match=r"phalanx\.yaml: can't be read: its file system does not answer"),
    ):
        spec_yaml._text_of_file(tmp_path / "away" / "phalanx.yaml")


@pytest.mark.parametrize("request_", [LOOKUP, READ_DIRECTORY])
def test_git_is_not_waited_for_while_it_looks_into_such_a_directory(tmp_path, monkeypatch, request_):
    monkeypatch.setattr(commit, "_WITHIN_S", 0.5)
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init",), (*author, "commit", "--allow-empty", "-m", "first")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)
    said: list[str] = []
    with a_hanging_file_system(tmp_path / "away", request_) as hangs:
        asks = threading.Thread(target=lambda: said.append(commit.Commit(tmp_path).text()), daemon=True)
        asks.start()
        asks.join(30)
        assert (said, hangs.is_set()) == ([""], True)
    while commit._left_behind:
        commit._left_behind.pop().communicate(timeout=60)


@pytest.mark.parametrize("size", [4096, 2 << 20])
def test_a_file_of_code_that_does_not_answer_is_named(tmp_path, monkeypatch, size):
    """A small tree is sent whole; of a large one, the contents that the head does not have."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "code").mkdir()
    with (
        a_hanging_file_system(tmp_path / "code" / "away", READ, size),
        pytest.raises(JobError, match=rf"/code/away/file.*: {_SILENT}"),
    ):
        submit(FakeCluster(tmp_path, nodes=1), JobSpec(("true",), "exec", directory=tmp_path / "code"))


@pytest.mark.parametrize(("request_", "name"), [(LOOKUP, "file"), (READ, "file"), (READ, "")])
def test_a_file_to_put_that_does_not_answer_is_named_and_leaves_no_part(tmp_path, request_, name):
    cluster = FakeCluster(tmp_path)
    with (
        a_hanging_file_system(tmp_path / "away", request_, 4096),
        pytest.raises(TransferError, match=rf"/away/file.*: {_SILENT}"),
    ):
        put(cluster, tmp_path / "away" / name)
    assert not [path for path in (tmp_path / "shared").rglob("*") if path.is_file() and path.name == "file"]


@pytest.mark.parametrize("request_", [LOOKUP, READ])
def test_a_file_for_s3_that_does_not_answer_is_named(tmp_path, monkeypatch, request_):
    monkeypatch.setattr(s3_client.Client, "call", lambda *_, **__: Answer(200, {}, b"<ListBucketResult/>"))
    keys = Credentials("key", "secret")
    with a_hanging_file_system(tmp_path / "away", request_, 4096), pytest.raises(OSError, match=_SILENT) as error:
        multipart.upload(Bucket("bucket", "", ""), str(tmp_path / "away/file"), "key", lambda: keys, lambda _: None)
    assert error.value.filename == str(tmp_path / "away/file")


def test_a_sample_that_does_not_answer_is_named(tmp_path):
    with a_hanging_file_system(tmp_path / "away", READ, 4096):
        samples = find(str(tmp_path))
        with pytest.raises(OSError, match=_SILENT) as error:
            pack(samples, plan(samples, "webdataset", 0, 1 << 20), str(tmp_path / "out"), lambda *_: None)
    assert error.value.filename == str(tmp_path / "away/file")


def test_an_argument_that_does_not_answer_is_named(tmp_path):
    with a_hanging_file_system(tmp_path / "away", LOOKUP):
        done = CliRunner().invoke(data_shards.shard, [str(tmp_path / "away/file"), str(tmp_path / "out")])
    assert done.exit_code == 2 and f"'{tmp_path}/away/file': {_SILENT}" in done.output


@pytest.fixture
def as_on_fuse(monkeypatch):
    """Read everything as on FUSE, in a process of its own."""
    monkeypatch.setattr(guest_file, "_is_served_by_a_process", lambda _: True)
    monkeypatch.setattr(guest_file, "_SILENT_S", 30)


def test_ctrl_c_ends_what_waits_for_fuse(tmp_path, as_on_fuse):
    def interrupt():
        hangs.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    with a_hanging_file_system(tmp_path / "away", LOOKUP) as hangs:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            guest_file.answer(tmp_path / "away", os.stat, tmp_path / "away/file")
        thread.join(60)


class Interrupted:
    """A wait in which Ctrl-C strikes. A timer could strike within os.fork, whose locks this process would keep."""

    def register(self, *_: object) -> None:
        pass

    def poll(self, _: float) -> list[object]:
        signal.raise_signal(signal.SIGINT)
        return []


def test_ctrl_c_leaves_no_process_behind(as_on_fuse, monkeypatch):
    """What ignores SIGINT and never ends, as a reader of FUSE does."""
    monkeypatch.setattr(guest_file.select, "poll", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        guest_file.answer("/", signal.pause)
    while guest_file._children:
        guest_file._reap()


def test_a_mistake_on_fuse_is_no_unexpected_error(tmp_path, as_on_fuse):
    done = CliRunner().invoke(data_shards.shard, [str(tmp_path / "absent"), str(tmp_path / "out")])
    assert done.exit_code == 2 and "does not exist" in done.output
    with pytest.raises(PackError) as error:
        find(str(tmp_path))
    assert error.value.code == "bad-samples" and "has no sub-folders" in error.value.args[0]


def mounted(monkeypatch, *places):
    lines = [f"1 2 0:3 / {place} rw - fuse.sshfs host rw\n" for place in places]
    monkeypatch.setattr(guest_file, "_known_mounts", (float("-inf"), []))
    monkeypatch.setattr(guest_file, "open", lambda *_, **__: io.BytesIO("".join(lines).encode()), raising=False)


@pytest.mark.parametrize("place", ["/", "/mnt", "/mnt/a\\040b/c", "/mnt/a\\040b/c/d"])
def test_fuse_is_known_at_a_path_above_it_and_below_it(monkeypatch, place):
    mounted(monkeypatch, place)
    assert guest_file._is_served_by_a_process("/mnt/a b/c")
    assert guest_file._is_served_by_a_process("/mnt/other") == (place in ("/", "/mnt"))
    assert guest_file._is_served_by_a_process("/")


def test_fuse_is_known_while_another_thread_reads_the_mounts(monkeypatch):
    mounted(monkeypatch, "/mnt")
    again = guest_file.open
    seen = []

    def meanwhile(*_, **__):
        monkeypatch.setattr(guest_file, "open", again, raising=False)
        seen.append(guest_file._is_served_by_a_process("/mnt"))
        return again()

    monkeypatch.setattr(guest_file, "open", meanwhile, raising=False)
    assert guest_file._is_served_by_a_process("/mnt") and seen == [True]


@pytest.fixture(params=["a\rb", "a\x0b-\x0bfuse", "a\x0c\x1c", "a\u2028-\u00a0b", b"a\xff"], ids=ascii)
def others_mount(request, tmp_path):
    """A mount of another user's, with a name that other programs may read as more than one line or word."""
    place = tmp_path / os.fsdecode(request.param)
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "none", place]
    if os.geteuid() or subprocess.run(mount, capture_output=True, timeout=60).returncode:
        pytest.skip("only root mounts file systems")
    yield place
    subprocess.run(["umount", place], check=True, timeout=60)


def test_others_mounts_stop_nothing_whatever_their_names(tmp_path, monkeypatch, others_mount):
    monkeypatch.setattr(guest_file, "_known_mounts", (float("-inf"), []))
    (tmp_path / "phalanx.yaml").write_text("name: a\n")
    assert guest_file.read(tmp_path / "phalanx.yaml", 100) == b"name: a\n"
    # The agent's, and the local cloud's, too.
    assert str(others_mount) in {fields[4] for fields in proc_files.mounts("")}
    assert str(others_mount) in {fields[4] for fields in kernel.mounts()}
    cgroups._own_group()


def test_a_file_system_is_known_by_its_kind_whatever_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(guest_file, "_known_mounts", (float("-inf"), []))
    name = "a\x0b-\x0btmpfs \r"
    with a_hanging_file_system(tmp_path / name, LOOKUP):
        assert guest_file._is_served_by_a_process(str(tmp_path / name / "file"))
