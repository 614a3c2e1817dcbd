"""The rest of a job is ended and verified to be gone, and no other process is touched."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from fake_nodes import marked
from hanging_files import CLOSE, a_hanging_file_system

from phalanx.runner import reaper
from phalanx.runner.checked import first_argv
from phalanx.runner.reaper import Sweep, find, find_starters
from phalanx.runner.system import MARK, process_stat

JOB = f"test-{os.getpid()}"


def start(script: str, job: str = JOB) -> subprocess.Popen[bytes]:
    """Start a marked shell and wait until it has printed "ready"."""
    process = subprocess.Popen(
        ["sh", "-c", script], env={**os.environ, MARK: job}, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout and process.stdout.readline() == b"ready\n"
    process.stdout.close()
    return process


def sweep(processes: list[subprocess.Popen[bytes]], grace_s: float = 5.0) -> dict[str, list[str]]:
    work, deadline = Sweep(JOB, grace_s=grace_s), time.monotonic() + 120
    while time.monotonic() < deadline:
        report = work.step()
        if report is not None:
            return report
        for process in processes:
            process.poll()
        time.sleep(0.005)
    raise AssertionError("the sweep has no end")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(reaper, "PATIENCE_S", 0.0)


@pytest.mark.parametrize("verb", [["starter", JOB], ["attend", "slurm", f"/efs/.phalanx/jobs/{JOB}"]])
def test_a_starter_that_lives_is_found_however_it_was_started(tmp_path: Path, verb: list[str]):
    runner = tmp_path / "runner.pyz"
    with zipfile.ZipFile(runner, "w") as archive:
        archive.writestr("__main__.py", "import time; print('ready', flush=True); time.sleep(60)")
    digest = hashlib.sha256(runner.read_bytes()).hexdigest()
    process = subprocess.Popen(first_argv(digest, str(runner), *verb, "more"), stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        assert find_starters(JOB) == {process.pid}
        assert find_starters(JOB[:-1]) == set()
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_is_about_to_end_is_left_alone(monkeypatch):
    monkeypatch.setattr(reaper, "PATIENCE_S", 5.0)
    process = start("echo ready; exec sleep 0.1")
    assert sweep([process]) == {"ended": [], "killed": [], "left": []}
    assert process.wait() == 0


def test_nothing_is_left_where_nothing_was():
    assert sweep([]) == {"ended": [], "killed": [], "left": []}


def test_a_process_gets_sigterm_and_one_that_ignores_it_is_killed():
    willing, deaf = start("echo ready; exec sleep 60"), start("trap '' TERM; echo ready; while :; do sleep 1; done")
    report = sweep([willing, deaf], grace_s=1.0)
    # The shell may have become the program that it runs by then.
    ended, killed = (" ".join(report[what]) for what in ("ended", "killed"))
    assert f"({willing.pid})" in ended and f"sh ({deaf.pid})" in ended
    assert f"({willing.pid})" not in killed and f"sh ({deaf.pid})" in killed
    assert report["left"] == []
    assert willing.wait() == -signal.SIGTERM
    assert deaf.wait() == -signal.SIGKILL


def test_a_stopped_process_is_ended_too():
    process = start("echo ready; exec sleep 60")
    process.send_signal(signal.SIGSTOP)
    assert sweep([process])["killed"] == []
    assert process.wait() == -signal.SIGTERM


def test_a_child_without_the_mark_belongs_to_its_parents_job():
    parent = start("env -i sleep 60 & echo ready; wait")
    found = find(JOB)
    assert len(found) == 2
    sweep([parent])
    parent.wait()
    assert find(JOB) == {}


def test_another_jobs_process_and_the_users_are_not_touched():
    other, ours = start("echo ready; exec sleep 60", job=JOB + "1"), start("echo ready; exec sleep 60")
    user = subprocess.Popen(["sleep", "60"])
    sweep([ours])
    ours.wait()
    assert marked(JOB) == []
    assert other.poll() is None
    assert user.poll() is None
    for process in (other, user):
        process.kill()
        process.wait()


def test_a_name_with_parentheses_and_spaces_is_read(tmp_path: Path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/usr/bin/sleep")
    process = subprocess.Popen([program, "60"])
    stat = process_stat(process.pid)
    process.kill()
    process.wait()
    assert stat is not None
    assert stat["parent"] == str(os.getpid())
    assert process_stat(process.pid) is None


# It executes a program while nothing answers the close of a file: the kernel then keeps readers of its /proc waiting.
HANGS = "import os, sys; os.open(sys.argv[1], os.O_RDONLY); os.execv('/bin/sleep', ['s', '9'])"
SWEEP = """
import json, sys
from phalanx.node import proc_files
from phalanx.runner import reaper
reaper.PATIENCE_S, reaper.KILL_WAIT_S, proc_files._PATIENCE_S = 0.1, 0.5, 0.1
work = reaper.Sweep(sys.argv[1], int(sys.argv[2]) or None, grace_s=0.1)
while (report := work.step()) is None:
    pass
print(json.dumps([report, *[[pid for pid, _ in found] for found in reaper.search(sys.argv[1], int(sys.argv[2]))]]))
"""


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_process_that_hangs_in_the_kernel_is_named_and_hinders_no_proof(tmp_path, is_ours):
    with a_hanging_file_system(tmp_path / "hanging", CLOSE) as hangs:
        argv = [sys.executable, "-c", HANGS, str(tmp_path / "hanging/file")]
        process = subprocess.Popen(argv, env={**os.environ, MARK: JOB})
        try:
            assert hangs.wait(60)
            words = [sys.executable, "-c", SWEEP, JOB, str(process.pid if is_ours else 0)]
            swept = subprocess.run(words, capture_output=True, text=True, timeout=60)
            report, found, unclear = json.loads(swept.stdout)
        finally:
            process.kill()
    process.wait(60)
    assert (process.pid in found, process.pid in unclear) == (is_ours, not is_ours)
    assert len(report["left"]) == 1 and report["left"][0].startswith("perhaps ") != is_ours
    assert len(report["killed"]) == is_ours
