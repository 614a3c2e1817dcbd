"""Output of ranks on fake nodes: kept byte for byte, followed, and found again."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from error_codes import raises_code
from fake_jobs import kill_followers, outcome, run, wait_for_line
from fake_nodes import FakeCluster

import phalanx.jobs.job
from phalanx.errors import ClusterGone, JobError
from phalanx.jobs.job import (
    JobSpec,
    JobState,
    OutputLine,
    list_jobs,
    open_job,
    submit,
)


def test_a_login_script_that_prints_does_no_harm(two_nodes, code):
    two_nodes.greet("Welcome to this node!\n")
    lines, status = run(two_nodes, code, "echo", "hi")
    assert sorted(lines) == ["0: hi", "1: hi"]
    assert status.exit_code == 0


def test_any_bytes_are_kept(two_nodes, code):
    (code / "out.py").write_text("import os\nos.write(1, bytes(range(256)) * 300)\nos.write(2, b'no newline')\n")
    job = submit(two_nodes, JobSpec(("python3", "out.py"), "exec", processes=1, directory=code))
    events = list(job.follow())
    kept = Path(job.directory, "output", "rank-0.log").read_bytes()
    assert kept in (bytes(range(256)) * 300 + b"no newline", b"no newline" + bytes(range(256)) * 300)
    assert [event.data for event in events if isinstance(event, OutputLine) and event.stream == "stderr"] == [
        b"no newline"
    ]


def test_a_line_of_100_mb_arrives_whole_and_the_end_is_reported(two_nodes, code):
    script = "head -c 100000000 /dev/zero | tr '\\0' x; exit 3"
    job = submit(two_nodes, JobSpec(("sh", "-c", script), "exec", processes=1, directory=code))
    received, status = 0, None
    for event in job.follow():
        if isinstance(event, OutputLine):
            received += len(event.data)
        else:
            status = event
    assert status is not None
    assert (received, status.exit_code) == (100_000_000, 3)
    assert "rank 0 on deeplearning-worker1 ended with exit code 3" in status.message


@contextmanager
def small_disk(directory: str) -> Iterator[tuple[str, ...]]:
    """Mount a disk of 4 MB at `directory`, visible only to commands with the prefix that is yielded."""
    mount = 'mount -t tmpfs -o size=4m,mode=755 tmpfs "$0" && echo there && exec cat'
    # In a user namespace anybody can be root.
    with subprocess.Popen(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as holder:
        assert holder.stdout
        shown = holder.stdout.readline()
        if shown != b"there\n":
            pytest.skip(f"nothing can be mounted here: {shown.decode()}")
        yield ("nsenter", "--target", str(holder.pid), "--user", "--mount", "--preserve-credentials")


def test_a_full_disk_ends_the_output_but_not_the_reporting(tmp_path, code):
    tight = FakeCluster(tmp_path)
    with small_disk(tight.shared) as enter:
        tight.shell = (*enter, *tight.shell)
        kept = "until [ -s ../output/index ]; do sleep 0.05; done"
        script = f"echo began; {kept}; cat /dev/zero > {tight.shared}/all; seq 100000; sleep 1; exit 5"
        lines, status = run(tight, code, "sh", "-c", script, processes=1)
        assert lines[0] == "0: began"
        assert (status.state, status.exit_code) == (JobState.FAILED, 5)
        assert "No space left on device" in status.message
        assert status.verified
        assert list_jobs(tight)[0].exit_code == 5


def test_a_full_shared_directory_takes_no_job_and_keeps_nothing_of_it(tmp_path, code):
    tight = FakeCluster(tmp_path)
    with small_disk(tight.shared) as enter:
        tight.shell = (*enter, *tight.shell)

        def on_disk(command: str) -> str:
            done = subprocess.run([*enter, "sh", "-c", command], capture_output=True, text=True, check=False)
            return done.stdout

        run(tight, code, "true", processes=1)
        before = on_disk(f"find {tight.shared} | sort")
        assert before
        for left_bytes in (0, 4096, 65536):
            on_disk(f"cd {tight.shared}; rm -f all; cat /dev/zero >all; truncate -s -{left_bytes} all")
            with raises_code("disk-full", "phalanx jobs --prune"):
                run(tight, code, "true", processes=1)
        on_disk(f"rm {tight.shared}/all")
        assert on_disk(f"find {tight.shared} | sort") == before


def test_detaching_changes_nothing_and_returning_shows_all(two_nodes, code):
    job = submit(
        two_nodes,
        JobSpec(("sh", "-c", "echo $RANK; sleep 0.2; echo bye"), "exec", directory=code, name="mine"),
        detach=True,
    )
    assert job.wait(timeout_s=120).exit_code == 0
    again = open_job(two_nodes, "mine")
    lines, status = outcome(again.follow(wait=False))
    assert sorted(lines) == ["0: 0", "0: bye", "1: 1", "1: bye"]
    assert status == job.status() == list_jobs(two_nodes)[0]
    assert outcome(again.follow(process="1"))[0] == ["1: 1", "1: bye"]


def test_a_broken_connection_resumes_where_it_broke(two_nodes, code, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    (code / "count.sh").write_text("for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.05; done\n")
    job = submit(two_nodes, JobSpec(("sh", "count.sh"), "exec", directory=code))
    lines = []
    for event in job.follow():
        if isinstance(event, OutputLine):
            lines.append(f"{event.process}: {event.data.decode()}")
        if lines and lines[-1] == "0: line 3":
            kill_followers(job)
    expected = [f"line {number}" for number in range(1, 9)]
    for rank in ("0", "1"):
        assert [line[3:] for line in lines if line[0] == rank] == expected


def test_a_connection_that_does_not_come_back_says_how_to_follow_again(two_nodes, code, monkeypatch):
    monkeypatch.setattr(phalanx.jobs.job, "_RECONNECT_WITHIN_S", 0.6)
    script = "echo on; until [ -e go ]; do sleep 0.05; done; echo done"
    job = submit(two_nodes, JobSpec(("sh", "-c", script), "exec", processes=1, directory=code))
    events = job.follow()
    wait_for_line(events, "on")
    two_nodes.shell, there = ("false",), two_nodes.shell
    kill_followers(job)
    with raises_code("connection-lost", job.id) as broken:
        list(events)
    assert "broke for 0.6 s" in broken.value.message
    assert "`phalanx status`" in broken.value.hint
    assert f"`phalanx logs -f {job.id}`" in broken.value.hint
    two_nodes.shell = there
    Path(job.directory, "work", "go").touch()
    assert outcome(job.follow())[0] == ["0: on", "0: done"]


def test_a_follower_ends_when_the_cluster_was_deleted(two_nodes, code, monkeypatch):
    script = "echo on; until [ -e go ]; do sleep 0.05; done"
    job = submit(two_nodes, JobSpec(("sh", "-c", script), "exec", processes=1, directory=code))
    events = job.follow()
    wait_for_line(events, "on")

    def gone():
        raise ClusterGone("cluster fake was deleted")

    with monkeypatch.context() as deleted:
        deleted.setattr(two_nodes, "remote", gone)
        kill_followers(job)
        with raises_code("job-lost", job.id, "cluster fake was deleted"):
            list(events)
    job.stop()


def test_jobs_are_found_by_what_people_remember(two_nodes, code):
    assert list_jobs(two_nodes) == []
    with pytest.raises(JobError, match="has no jobs"):
        open_job(two_nodes)
    first = run(two_nodes, code, "true", processes=1, name="train")[1]
    second = run(two_nodes, code, "true", processes=1)[1]
    found = {reference: open_job(two_nodes, reference).id for reference in ("train", first.id, second.id[-4:], None)}
    assert found == {"train": first.id, first.id: first.id, second.id[-4:]: second.id, None: list_jobs(two_nodes)[0].id}
    with raises_code("ambiguous-job", "2 jobs"):
        open_job(two_nodes, first.id[:4])
    with pytest.raises(JobError, match="no job 'nothing'"):
        open_job(two_nodes, "nothing")
    with pytest.raises(JobError, match="name is empty"):
        open_job(two_nodes, "")
