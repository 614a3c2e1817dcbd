"""A job, or an earlier cluster on a kept shared directory, plants its own runner there for later jobs.

It must not get anything of a later job: neither its secrets, nor an instruction run in phalanx's name.
"""

from __future__ import annotations

import base64
import io
import json
import shlex
import time
import zipfile
from collections.abc import Iterator

import pytest
from local_clouds import break_on_purpose
from terminals import SPEC, Terminal, a_cluster

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
    """The thief's runner is /tmp/thief.pyz on the head; it writes what it gets to /efs/loot."""
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
    done = loot.phalanx(*command, check=False)
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


# What an earlier cluster can leave on a directory that is kept: a whole job that seems to have lost its runner, under
# an id newer than any, with a runner of its own.
PLANT = """
import json, os, shutil, sys
jobs, model = "/efs/.phalanx/jobs/", sys.argv[1]
for job_id in ("991231-235959-badbad", "991231-235958-badbad"):
    shutil.copytree(jobs + model, jobs + job_id)
    for name, more in (("job.json", {}), ("state.json", {"state": "running", "runner": None, "attempts": []})):
        record = json.load(open(f"{jobs}{job_id}/{name}"))
        record.update(id=job_id, command=["sh", "-c", "echo ran >>/efs/loot"], restarts=9, stack="an earlier one")
        record.update(more)
        json.dump(record, open(f"{jobs}{job_id}/{name}", "w"))
shutil.copy("/tmp/thief.pyz", jobs + "991231-235959-badbad/runner.pyz")
"""
HONEST = 'echo "$PHALANX_RESTART" >>/efs/honest; exec sleep $((4711 * (PHALANX_RESTART == 0)))'


def test_a_new_head_settles_its_own_jobs_with_a_runner_that_it_knows_and_no_others(loot: Terminal):
    run = ("run", "--detach", "--launcher", "exec", "-n", "1", "--restarts", "1")
    honest = loot.phalanx(*run, "--", "sh", "-c", HONEST).stdout.strip()
    loot.on("head", "until [ -s /efs/honest ]; do sleep 0.1; done")
    loot.on("head", f"python3 -c {shlex.quote(PLANT)} {honest}")
    planted = ("991231-235959-badbad", "991231-235958-badbad")
    before = [loot.on("head", f"cat /efs/.phalanx/jobs/{job}/state.json") for job in planted]
    (head,) = (node["instance_id"] for node in json.loads(loot.phalanx("nodes", "--json").stdout)[:1])
    break_on_purpose(loot, kill={"instance_id": head, "silent": False})
    try:
        deadline = time.monotonic() + 400
        while loot.on("head", "cat /efs/honest", check=False).split() != ["0", "1"]:
            assert stolen(loot) == ""
            assert time.monotonic() < deadline
            time.sleep(1)
        listed = json.loads(loot.phalanx("jobs", "--json").stdout)
        assert [job["state"] for job in listed if job["id"] in planted] == ["lost"] * 2
        for arguments in (("logs", planted[0]), ("stop", planted[1])):
            assert "another cluster" in loot.phalanx(*arguments, check=False).stderr
        assert stolen(loot) == ""
        assert [loot.on("head", f"cat /efs/.phalanx/jobs/{job}/state.json") for job in planted] == before
    finally:
        loot.on("head", "rm -rf /efs/.phalanx/jobs/9* /efs/honest")
