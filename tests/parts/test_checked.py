"""A zipapp in a directory where others can write is run only if it is unchanged, and nothing is run in its place."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from phalanx.runner.checked import STDIN, UNAVAILABLE, first_argv

MAIN = "print('begun', flush=True); input(); import later; print(later.WORD)"


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    return a_zipapp(tmp_path / "runner.pyz", "own")


def a_zipapp(path: Path, word: str, main: str = MAIN) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__main__.py", main)
        archive.writestr("later.py", f"WORD = {word!r}")
    return path


def begin(runner: Path, digest: str, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        first_argv(digest, str(runner), *arguments), stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_is_imported_later_is_what_was_checked(runner: Path, tmp_path: Path):
    thief = a_zipapp(tmp_path / "thief.pyz", "thief's")
    with begin(runner, digest_of(runner), "verb") as process:
        assert process.stdout and process.stdout.readline() == "begun\n"
        runner.write_bytes(thief.read_bytes())
        assert process.communicate("go\n", timeout=120) == ("own\n", "")


def test_nothing_can_write_into_its_memory(runner: Path):
    with begin(runner, digest_of(runner), "verb") as process:
        assert process.stdout and process.stdout.readline() == "begun\n"
        [memory] = [fd for fd in Path(f"/proc/{process.pid}/fd").iterdir() if "memfd" in str(fd.readlink())]
        file = os.open(memory, os.O_RDWR)
        with pytest.raises(PermissionError):
            os.write(file, b"thief")
        os.close(file)
        process.communicate("go\n", timeout=120)


@pytest.mark.parametrize("kind", ["other", "missing", "directory", "fifo", "endless"])
def test_anything_else_is_refused_at_once(runner: Path, kind: str):
    digest = digest_of(runner)
    runner.unlink()
    make = {
        "other": lambda: a_zipapp(runner, "thief's"),
        "missing": lambda: None,
        "directory": runner.mkdir,
        "fifo": lambda: os.mkfifo(runner),
        "endless": lambda: runner.symlink_to("/dev/zero"),
    }
    make[kind]()
    with begin(runner, digest, "verb") as process:
        assert process.communicate(timeout=120) == ("", f"{runner} is not the runner that it was\n")
    assert process.returncode == UNAVAILABLE


def test_without_a_verb_it_only_checks(runner: Path):
    with begin(runner, digest_of(runner)) as process:
        assert process.communicate(timeout=120) == ("", "")
    assert process.returncode == 0


@pytest.mark.parametrize("kind", ["own", "other", "none"])
def test_it_can_come_through_stdin(runner: Path, kind: str):
    digest = digest_of(a_zipapp(runner, "own", MAIN.replace("input(); ", "")))
    sent = {"own": runner.read_bytes(), "other": b"print('thief')", "none": b""}[kind]
    done = subprocess.run(first_argv(digest, STDIN, "verb"), input=sent, capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == ((0, b"begun\nown\n") if kind == "own" else (UNAVAILABLE, b""))
