"""What is sent with a job: the code unchanged, without generated files, and one runner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx import guest_file
from phalanx.code import bundle, code_tree


def unpack(tree: code_tree.CodeTree, into: Path, progress=lambda _: None) -> Path:
    """Pack the tree and unpack it with the real tar, as on the head."""
    archive = bundle.tar({"job.json": b"{}"}, tree, "work", progress)
    into.mkdir()
    subprocess.run(["tar", "-x", "-f", "-", "-C", str(into)], input=archive, check=True)
    return into / "work"


def test_the_copy_is_the_directory(tmp_path):
    code = tmp_path / "code"
    (code / "sub" / "empty").mkdir(parents=True)
    names = ["a b", "new\nline", "-dash", "ünïcode", "q'uote\"", "x" * 200, os.fsdecode(b"not-utf8-\xff\xfe")]
    for name in names:
        (code / "sub" / name).write_bytes(os.fsencode(name))
    (code / "run.sh").write_text("#!/bin/sh\n")
    (code / "run.sh").chmod(0o755)
    (code / "link").symlink_to("sub/a b")
    (code / "dangling").symlink_to("/nowhere")
    (code / "dirlink").symlink_to("sub")
    os.mkfifo(code / "fifo")
    (code / "sub" / "empty").chmod(0o555)
    work = unpack(code_tree.scan(code), tmp_path / "out")
    assert {path.name for path in (work / "sub").iterdir()} == {*names, "empty"}
    assert all((work / "sub" / name).read_bytes() == os.fsencode(name) for name in names)
    assert os.access(work / "run.sh", os.X_OK)
    assert (work / "sub" / "empty").stat().st_mode & 0o700 == 0o700
    assert (work / "link").readlink() == Path("sub/a b")
    assert (work / "dangling").readlink() == Path("/nowhere")
    assert (work / "dirlink").is_symlink()
    assert not (work / "fifo").exists()
    assert (tmp_path / "out" / "job.json").read_bytes() == b"{}"


def test_a_tree_may_be_deeper_than_calls_can_be_nested(tmp_path):
    depth = 1200
    (tmp_path / "code").mkdir()
    directory = os.open(tmp_path / "code", os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=directory)
        outer, directory = directory, os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(outer)
    os.close(directory)
    work = unpack(code_tree.scan(tmp_path / "code"), tmp_path / "out")
    found = subprocess.run(["find", work, "-depth", "-name", "d"], capture_output=True, check=True).stdout
    # Here, because what tidies up after the tests calls itself for each level.
    subprocess.run(["rm", "-r", work, tmp_path / "code"], check=True)
    assert found.count(b"\n") == depth


def test_progress_counts_files_and_bytes(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "a").write_bytes(b"12345")
    seen: list[bundle.SendProgress] = []
    unpack(code_tree.scan(code), tmp_path / "out", seen.append)
    assert seen == [bundle.SendProgress(1, 5, 5)]


def test_a_file_that_grows_or_shrinks_meanwhile_does_no_harm(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    for name in ("a-growing", "b-gone", "c-last"):
        (code / name).write_bytes(b"12345")
    tree = code_tree.scan(code)
    (code / "a-growing").write_bytes(b"1234567890")
    work = unpack(tree, tmp_path / "out")
    assert (work / "a-growing").read_bytes() == b"1234567890"
    (code / "b-gone").unlink()
    (code / "c-last").write_bytes(b"")
    work = unpack(tree, tmp_path / "out2")
    assert [path.name for path in sorted(work.iterdir())] == ["a-growing", "c-last"]


def test_the_runner_is_the_same_bytes_for_the_same_sources(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    first = bundle.runner_zip()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
    assert bundle.runner_zip() == first
    [kept] = (tmp_path / "one" / "phalanx").iterdir()
    assert kept.read_bytes() == first


def test_the_runner_needs_nothing_but_a_python(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runner = tmp_path / "runner.pyz"
    runner.write_bytes(bundle.runner_zip())
    done = subprocess.run(
        [sys.executable, "-IS", runner, "reap", "no-such-job", "i-1"], capture_output=True, check=True
    )
    report = json.loads(done.stdout)
    assert (report["ended"], report["killed"], report["left"]) == ([], [], [])


@pytest.mark.parametrize("is_on_fuse", [False, True])
@pytest.mark.parametrize("block", [1, 2])
def test_a_log_that_vanishes_while_it_is_read_leaves_a_whole_archive(tmp_path, monkeypatch, is_on_fuse, block):
    code = tmp_path / "code"
    code.mkdir()
    (code / "a.log").write_bytes(b"a" * (3 << 20))
    (code / "b").write_bytes(b"b")
    blocks = []

    def meanwhile(content, size):
        blocks.append(size)
        if len(blocks) == block:
            (code / "a.log").unlink()
        return read(content, size)

    tree = code_tree.scan(code)
    monkeypatch.setattr(guest_file, "_is_served_by_a_process", lambda _: is_on_fuse)
    read = guest_file.Content._block
    monkeypatch.setattr(guest_file.Content, "_block", meanwhile)
    work = unpack(tree, tmp_path / "out")
    assert (work / "b").read_bytes() == b"b"
    if block == 1:
        assert not (work / "a.log").exists()
    else:
        rest = b"\0" if is_on_fuse else b"a"
        assert (work / "a.log").read_bytes() == b"a" * (1 << 20) + rest * (2 << 20)
