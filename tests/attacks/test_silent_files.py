"""Files to send are on a file system whose server is away: each command ends, and names the file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hanging_files import READ, a_hanging_file_system

pytestmark = pytest.mark.cluster

SMALL, LARGE = 4096, 2 << 20
# The deadline is 30 s. What waits for FUSE can't be killed: a process that it keeps would never end.
WITHIN_S = 90
COMMANDS = {
    "run": ("run", "--directory", "{0}", "--launcher", "exec", "--", "true"),
    "put": ("put", "{0}/away"),
    "data put": ("data", "put", "{0}/away/file", "s3://silent-files/key"),
    "data shard": ("data", "shard", "{0}", "{0}-shards"),
}


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ended after their file system, since they may not end before."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(params=[SMALL, LARGE])
def away(request: pytest.FixtureRequest, started: object, tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "code").mkdir()
    with a_hanging_file_system(tmp_path / "code/away", READ, request.param):
        yield tmp_path / "code"


def test_a_file_that_does_not_answer_ends_the_command_that_sends_it(cluster, away, started):
    for words in COMMANDS.values():
        started.append(cluster.start(*(word.format(away) for word in words), errors=subprocess.PIPE))
    for name, process in zip(COMMANDS, started, strict=True):
        out, errors = process.communicate(timeout=WITHIN_S)
        assert process.returncode, (name, out, errors)
        assert f"{away}/away/file" in errors and "does not answer" in errors, (name, out, errors)
