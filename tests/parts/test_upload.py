"""Large directories are sent in parts, only what is not there yet; and each job has its own copy."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path

import pytest
from error_codes import raises_code
from fake_nodes import FakeCluster

from phalanx import guest_file
from phalanx.code import upload
from phalanx.code.bundle import Opening
from phalanx.errors import JobError
from phalanx.jobs import job as jobs
from phalanx.jobs.job import JOBS, JobSpec, JobStatus, list_jobs, submit
from phalanx.runner.files import codestore

BIG = 3 << 20


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return FakeCluster(tmp_path, nodes=1)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A directory large enough to be sent in parts."""
    code = tmp_path / "code"
    (code / "sub" / "empty").mkdir(parents=True)
    (code / "big").write_bytes(os.urandom(BIG))
    (code / "same").write_bytes((code / "big").read_bytes())
    (code / "run.sh").write_text("#!/bin/sh\nls -R\n")
    (code / "run.sh").chmod(0o755)
    (code / "sub" / "link").symlink_to("../big")
    (code / "sub" / os.fsdecode(b"not-utf8-\xff")).touch()
    for path in code.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000), follow_symlinks=False)
    return code


def run(cluster, code: Path, script: str = "true") -> tuple[JobStatus, Path, int]:
    """Run a job; return its final status, its work/, and the bytes of code that were sent."""
    seen = [0]
    job = submit(
        cluster,
        JobSpec(("sh", "-c", script), "exec", directory=code),
        progress=lambda progress: seen.append(progress.bytes),
    )
    status = [event for event in job.follow() if isinstance(event, JobStatus)][-1]
    return status, Path(job.directory) / "work", seen[-1]


def picture(root: Path) -> dict[str, tuple]:
    """Describe a directory: contents, links, executable bits, and modification times."""
    found = {}
    for path in root.rglob("*"):
        content = os.fspath(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        is_file = path.is_file() and not path.is_symlink()
        found[os.fspath(path.relative_to(root))] = (
            content,
            is_file and os.access(path, os.X_OK),
            is_file and path.stat().st_mtime,
        )
    return found


def test_the_copy_is_the_directory_and_only_changes_are_sent_again(cluster, code):
    _, first, sent = run(cluster, code)
    assert picture(first) == picture(code)
    assert BIG < sent < BIG + 1000  # the two equal files were sent once
    (code / "run.sh").write_text("#!/bin/sh\necho other\n")
    (code / "same").unlink()
    _, second, sent = run(cluster, code)
    assert picture(second) == picture(code)
    assert sent == (code / "run.sh").stat().st_size
    assert run(cluster, code)[2] == 0


def test_what_a_job_does_to_its_copy_affects_no_other(cluster, code):
    status, first, _ = run(cluster, code, "echo more >> big; truncate -s 0 same; rm run.sh")
    assert status.exit_code == 0
    assert (first / "big").stat().st_size == BIG + 5
    _, second, sent = run(cluster, code)
    assert picture(second) == picture(code)
    assert sent == 0


def test_what_is_sent_is_said_before_a_large_directory_is_read(cluster, code, monkeypatch):
    happened = []
    read = upload.Fingerprints.of
    monkeypatch.setattr(upload.Fingerprints, "of", lambda *given: happened.append("read") or read(*given))
    spec = JobSpec(("true",), "exec", directory=code)
    submit(cluster, spec, progress=lambda one: happened.append(one.opening) if one.opening else None).wait(120)
    opening = happened[0]
    assert isinstance(opening, Opening) and opening.in_parts and opening.bytes > 2 * BIG
    assert happened.count("read") == opening.files == 4


def test_a_refused_job_takes_no_code(cluster, code):
    seen = []
    spec = JobSpec(("true",), "exec", processes=1000, directory=code)
    with pytest.raises(JobError, match="1000 processes were requested"):
        submit(cluster, spec, progress=seen.append)
    assert seen == []
    assert list_jobs(cluster) == []
    assert list((cluster.root / "shared" / JOBS).glob("*")) == []


def test_secrets_and_code_in_parts_come_apart_again(cluster, code):
    spec = JobSpec(("sh", "-c", "echo $TOKEN; wc -c < big"), "exec", directory=code, secrets={"TOKEN": "ü{}"})
    lines = [event.data.decode() for event in submit(cluster, spec).follow() if not isinstance(event, JobStatus)]
    assert lines == ["ü{}", str(BIG)]


def test_a_file_that_changes_or_vanishes_while_it_is_sent_does_no_harm(cluster, code, monkeypatch):
    send = jobs.HeadCommand.answer

    def meanwhile(self, key):
        if key == "send":
            (code / "big").write_bytes(b"changed")
            (code / "same").unlink()
            (code / "run.sh").unlink()
        return send(self, key)

    monkeypatch.setattr(jobs.HeadCommand, "answer", meanwhile)
    _, work, _ = run(cluster, code)
    assert (work / "big").read_bytes() == (work / "same").read_bytes() == b"changed"
    assert not (work / "run.sh").exists()
    monkeypatch.undo()
    objects = cluster.root / "shared" / ".phalanx" / "code" / "objects"
    assert {int(path.name.partition("-")[2]) for path in objects.iterdir()} == {0}


def test_a_file_that_vanishes_within_its_content_leaves_the_stream_whole(tmp_path, monkeypatch):
    """On FUSE, where each block opens it again."""
    monkeypatch.setattr(guest_file, "_is_served_by_a_process", lambda _: True)
    (tmp_path / "log").write_bytes(b"a" * (3 << 20))
    content, out = guest_file.Content(str(tmp_path / "log")), io.BytesIO()
    (tmp_path / "log").unlink()
    upload._write(out, content)
    assert out.getvalue() == (3 << 20).to_bytes(8, "big") + b"a" * (1 << 20) + bytes(2 << 20)


def test_a_connection_that_breaks_leaves_no_job_and_what_came_whole(cluster, code, monkeypatch):
    whole = upload._write

    def broken(out, file):
        """Break off in the middle of the second file."""
        if Path(file.path).name == "run.sh":
            out.write((100).to_bytes(8, "big") + b"half")
            raise BrokenPipeError("cut")
        whole(out, file)

    monkeypatch.setattr(upload, "_write", broken)
    with raises_code("job-not-accepted", "ended too early"):
        run(cluster, code)
    monkeypatch.undo()
    assert list((cluster.root / "shared" / JOBS).glob("*")) == []
    assert [path.stat().st_size for path in (cluster.root / "shared/.phalanx/code/objects").iterdir()] == [BIG]


@pytest.mark.parametrize("at", ["send", "made"])
def test_ctrl_c_before_the_head_has_all_or_after_leaves_no_job_running(cluster, code, monkeypatch, at):
    answer = jobs.HeadCommand.answer

    def interrupted(self, key):
        if key == at:
            raise KeyboardInterrupt
        return answer(self, key)

    monkeypatch.setattr(jobs.HeadCommand, "answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit(cluster, JobSpec(("sleep", "60"), "exec", directory=code))
    left = ["stopped"] if at == "made" else []
    assert [job.state.value for job in list_jobs(cluster)] == left
    assert len(list((cluster.root / "shared" / JOBS).glob("*"))) == len(left)


def test_the_store_keeps_what_was_used_last_and_no_more_than_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(codestore, "MOST_BYTES", 250)
    codestore.Store(str(tmp_path)).close()
    objects = {letter: f"{letter * 64}-100" for letter in "abc"}
    for number, letter in enumerate("abca"):
        (tmp_path / "objects" / objects[letter]).write_bytes(b"x" * 100)
        store = codestore.Store(str(tmp_path))
        store.remember([["file", objects[letter], 0o644, 0]])
        for tree in (tmp_path / "trees").iterdir():
            if tree.stat().st_mtime > 1000:
                os.utime(tree, (number, number))
        (tmp_path / "objects" / "incoming.1").touch()
        other = codestore.Store(str(tmp_path))
        store.tidy()
        assert (tmp_path / "objects" / "incoming.1").exists(), "another job may be sending it"
        other.close()
        store.tidy()
        store.close()
    assert {path.name for path in (tmp_path / "objects").iterdir()} == {objects["c"], objects["a"]}
    assert len(list((tmp_path / "trees").iterdir())) == 2


def test_the_lock_is_one_that_nfs_gives_and_none_refuses_no_job(tmp_path, monkeypatch):
    store = codestore.Store(str(tmp_path))
    (tmp_path / "objects" / "incoming.1").touch()
    assert store._lock.readable(), "NFS asks that for LOCK_SH"

    def flock(_file, _operation):
        raise OSError(errno.EBADF, "no upgrade")

    monkeypatch.setattr(codestore.fcntl, "flock", flock)
    store.tidy()
    assert (tmp_path / "objects" / "incoming.1").exists()
    store.close()


def test_removing_much_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(codestore, "_BEAT_EVERY_S", 0)
    store = codestore.Store(str(tmp_path))
    for number in range(3):
        (tmp_path / "objects" / f"incoming.{number}").touch()
    beats: list[int] = []
    store.tidy(codestore._once_a_second(lambda: beats.append(1)))
    store.close()
    assert len(beats) == 3


def test_only_files_that_look_new_are_read_again(tmp_path, monkeypatch):
    from phalanx.code import code_tree
    from phalanx.code.upload import Fingerprints

    code, cache = tmp_path / "code", tmp_path / "cache"
    code.mkdir()
    (code / "a").write_text("one")

    def objects() -> list[str]:
        known = Fingerprints(code, cache)
        found = [known.of(entry) for entry in code_tree.scan(code).entries]
        known.keep()
        return found

    before = objects()
    assert not cache.exists() or json.loads(next(cache.iterdir()).read_text()) == {}, "it may change unseen yet"
    (code / "a").write_text("two")
    assert objects() != before
    monkeypatch.setattr("phalanx.code.upload._RACY_NS", 0)
    before = objects()
    times = (code / "a").stat()
    (code / "a").write_text("six")
    os.utime(code / "a", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert objects() != before, "size and time of the last change are those of before, as after `cp -p` or `touch -r`"
    before = objects()
    monkeypatch.setattr("phalanx.code.upload._digest", lambda path: pytest.fail(f"{path} was read again"))
    assert objects() == before
