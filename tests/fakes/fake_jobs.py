"""Helpers for tests that follow a job, kill its processes, and check that nothing is left."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_nodes import FakeCluster, kill_chosen, marked

from phalanx.jobs.job import JOBS, Job, JobSpec, JobStatus, OutputLine, submit
from phalanx.runner.checked import VERB_AT


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """An empty directory for a job's code."""
    (tmp_path / "code").mkdir()
    return tmp_path / "code"


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[FakeCluster]:
    """A cluster whose nodes are this machine; at the end no job of the test may have left anything."""
    yield (cluster := FakeCluster(tmp_path))
    assert_nothing_is_left(cluster)


def assert_nothing_is_left(cluster: FakeCluster) -> None:
    """Check that no process of its jobs runs, after killing all, so that a failing test leaves nothing either."""
    for directory in Path(cluster.shared).glob(f"{JOBS}/*"):
        if marked(directory.name):
            Job(cluster, directory.name).stop()
        assert marked(directory.name) == []


def run(
    cluster: FakeCluster, code: Path, *command: str, launcher: str = "exec", **options: Any
) -> tuple[list[str], JobStatus]:
    """Submit a job and follow it to its end; return the lines as "process: text", and the final status."""
    job = submit(cluster, JobSpec(command, launcher, directory=code, **options))
    return outcome(job.follow())


def outcome(events: Iterable[OutputLine | JobStatus]) -> tuple[list[str], JobStatus]:
    """Consume the remaining events; return the lines as "process: text", and the last status."""
    lines, status = [], None
    for event in events:
        if isinstance(event, OutputLine):
            lines.append(f"{event.process}: {event.data.decode()}")
        else:
            status = event
    assert status is not None
    return lines, status


def wait_for_line(events: Iterable[OutputLine | JobStatus], text: str) -> None:
    """Follow until a line with this text appears."""
    for event in events:
        if isinstance(event, OutputLine) and text in event.data.decode():
            return
    raise AssertionError(f"{text!r} never came")


def wait_for_message(events: Iterable[OutputLine | JobStatus], text: str) -> None:
    """Follow until the job's message begins with this text."""
    for event in events:
        if isinstance(event, JobStatus) and event.message.startswith(text):
            return
    raise AssertionError(f"{text!r} never came")


def runner_pid(job: Job) -> int:
    return json.loads(Path(job.directory, "state.json").read_text())["runner"]["pid"]


def kill_followers(job: Job) -> None:
    """Break the connection, so that output in transit is lost."""
    kill_chosen(
        lambda argv, env: (
            argv[VERB_AT : VERB_AT + 2] in (["follow", job.directory], ["submit", job.directory])
            and "MASTER" not in env
        ),
        besides=runner_pid(job),
    )
