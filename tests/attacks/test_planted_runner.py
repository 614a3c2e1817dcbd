"""A job, or an earlier cluster on a kept shared directory, leaves a runner of its own there for the jobs to come.

It must not get what a later job is given: not its secrets, and not one instruction run in phalanx's name.
"""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Iterator

import pytest

from conftest import SPEC, Terminal, a_cluster

pytestmark = pytest.mark.cluster

SECRET = "hunter2-of-a-later-job"
TAKES_WHAT_IT_IS_GIVEN = """
import os, sys
with open('/efs/loot', 'ab') as loot:
    loot.write(' '.join(sys.argv).encode() + b'\\n')
    loot.flush()
    while data := os.read(0, 65536):
        loot.write(data)
        loot.flush()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Terminal]:
    with a_cluster(
        SPEC.replace("name: contract", "name: planted").replace("nodes: 4\nmin: 4", "nodes: 2\nmin: 2")
    ) as terminal:
        yield terminal


@pytest.fixture
def loot(cluster: Terminal) -> Iterator[Terminal]:
    """The thief's runner lies on the head as /tmp/thief.pyz; /efs/loot is what it got."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("__main__.py", TAKES_WHAT_IT_IS_GIVEN)
    cluster.on("head", f"echo {base64.b64encode(buffer.getvalue()).decode()} | base64 -d >/tmp/thief.pyz")
    cluster.phalanx("run", "-n", "1", "--", "true")
    yield cluster
    cluster.on("head", "rm -rf /efs/loot /efs/.phalanx/tools")


def stolen(cluster: Terminal) -> str:
    return cluster.on("head", "cat /efs/loot 2>/dev/null || true")


@pytest.mark.parametrize(
    "how",
    [
        'cp /tmp/thief.pyz "$runner"',
        'cat /tmp/thief.pyz >"$runner"',
        'ln -sf /tmp/thief.pyz "$runner"',
        'cat /tmp/thief.pyz >>"$runner"',
        'rm "$runner"; mkfifo "$runner"',
        'chmod 0 "$runner"',
    ],
)
def test_a_runner_that_was_changed_is_not_given_the_secrets_of_the_next_job(loot: Terminal, how: str):
    loot.on("head", f"for runner in /efs/.phalanx/tools/*/runner.pyz; do {how}; done")
    (loot.directory.parent / "secret").write_text(SECRET)
    command = ("run", "-n", "2", "--secret", "TOKEN=@../secret", "--", "sh", "-c", "echo got ${#TOKEN}")
    done = loot.phalanx(*command, check=False, timeout_s=30)
    assert stolen(loot) == ""
    assert done.stdout.count(f"got {len(SECRET)}") == 2


def test_a_job_directory_left_for_others_to_look_at_runs_nothing_of_its_own(loot: Terminal):
    planted = "/efs/.phalanx/jobs/991231-235959-badbad"
    orphan = '{"id": "991231-235959-badbad", "state": "running", "runner": {}, "restarts": 9, "attempts": []}'
    loot.on("head", f"mkdir {planted}; cp /tmp/thief.pyz {planted}/runner.pyz; echo '{orphan}' >{planted}/state.json")
    try:
        for command in (["jobs"], ["logs", "991231-235959-badbad"], ["stop", "991231-235959-badbad"], ["recipes"]):
            loot.phalanx(*command, check=False)
        assert stolen(loot) == ""
    finally:
        loot.on("head", f"rm -rf {planted}")


def test_what_carries_files_home_is_phalanxs_own(loot: Terminal):
    loot.on("head", "for runner in /efs/.phalanx/tools/*/runner.pyz; do cp /tmp/thief.pyz $runner; done")
    loot.on("head", "echo result >/efs/result.txt")
    loot.phalanx("get", "/efs/result.txt", "result.txt", check=False)
    assert stolen(loot) == ""
    assert (loot.directory / "result.txt").read_text() == "result\n"
