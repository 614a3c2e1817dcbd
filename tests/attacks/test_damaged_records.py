"""A job can write into every job's directory: damage there must cause no more than one line about each damaged job.

`phalanx jobs`, `logs`, `status` and `stop` must neither fail, hang nor show a traceback, and other jobs must go on.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from damage import NEWER, ORPHANS, OUTPUTS, STATES
from local_clouds import api
from terminals import Terminal, a_cluster
from verdicts import is_proven

pytestmark = pytest.mark.cluster

SPEC = "name: damaged\ncloud: local\nnodes: 1\nmin: 1\ntype: c5.large\nshared: /efs\nkeep: no\n"
JOBS = "/efs/.phalanx/jobs"
# A command of the CLI takes half a second; one that waits for a FIFO waits forever.
ANSWER_S = 300.0
# The CLI's exit codes when a job can't be queried, with a reason.
# No such process, a job that can't be followed, a newer phalanx.
REFUSED = (2, 7, 8)
# What can be wrong inside a file is for tests/unit; these are one of each other kind.
KINDS = ("empty", "fifo", "directory", "nested", "gone")


@pytest.fixture(scope="module")
def victim() -> Iterator[Terminal]:
    with a_cluster(SPEC) as terminal:
        yield terminal


@pytest.fixture(scope="module")
def sound(victim: Terminal) -> str:
    """A job that is left alone."""
    return run(victim, "sh", "-c", "echo kept | tee kept").stderr.split()[1]


@pytest.fixture(scope="module")
def hostile(victim: Terminal) -> Path:
    """The code of a job that damages records."""
    code = victim.directory / "hostile"
    code.mkdir()
    (code / "damage.py").write_text((Path(__file__).parent / "damage.py").read_text())
    victim.phalanx("run", "--launcher", "exec", "--directory", str(code), "--", "true")
    return code


@pytest.fixture(scope="module")
def damaged(victim: Terminal, hostile: Path, sound: str) -> dict[str, str]:
    """The ways to damage records, each with its job's id; for tests that do not repair them."""
    return damage(victim, hostile, sound)


@pytest.fixture
def doomed(victim: Terminal, hostile: Path, sound: str, way: str) -> Iterator[str]:
    """A job damaged in this way for one test: `stop` repairs the record, and any listing settles an orphan."""
    job_id = damage(victim, hostile, sound, way)[way]
    yield job_id
    victim.on("head", f"rm -rf {JOBS}/{job_id}")


def damage(terminal: Terminal, hostile: Path, sound: str, *ways: str) -> dict[str, str]:
    """Copy the sound job and damage the copies in these ways, or in all."""
    arguments = ("python3", "damage.py", JOBS, sound, *ways)
    done = terminal.phalanx("run", "--launcher", "exec", "--directory", str(hostile), "--", *arguments)
    return json.loads(done.stdout.partition("[0] ")[2])


def run(terminal: Terminal, *arguments: str) -> subprocess.CompletedProcess[str]:
    return terminal.phalanx("run", "--launcher", "exec", "--", *arguments)


def asked(terminal: Terminal, *arguments: str) -> str:
    """Return what the user sees, which must come in time and have no traceback."""
    done = terminal.phalanx(*arguments, check=False, timeout_s=ANSWER_S)
    shown = done.stdout + done.stderr
    assert "Traceback" not in shown and 'File "' not in shown, f"{arguments} → {done.returncode}\n{shown}"
    assert done.returncode in (0, 1, *REFUSED), f"{arguments} → {done.returncode}\n{shown}"
    return shown


def listed(terminal: Terminal) -> dict[str, dict]:
    done = terminal.phalanx("jobs", "--json", timeout_s=ANSWER_S)
    return {job["id"]: job for job in json.loads(done.stdout)}


def test_a_damaged_record_is_one_jobs_line_and_hides_no_other(victim, sound, damaged):
    jobs = listed(victim)
    assert jobs[sound]["state"] == "succeeded"
    for way in STATES:
        job = jobs[damaged[way]]
        assert (way, job["state"]) == (way, "damaged")
        assert job["message"].startswith("damaged record: ")
    assert {jobs[damaged[way]]["state"] for way in OUTPUTS} == {"succeeded"}
    table = victim.phalanx("jobs").stdout.splitlines()
    assert sum("damaged record: " in line for line in table) == len(STATES)
    assert "\x1b" not in "".join(table)


def test_status_counts_the_others(victim, damaged):
    assert f"{len(STATES) + 1} with a record that can't be read" in asked(victim, "status")


@pytest.mark.parametrize("way", [*KINDS, *OUTPUTS])
def test_logs_of_a_damaged_job_end_and_say_why(victim, damaged, way):
    shown = asked(victim, "logs", damaged[way])
    assert "damaged" in shown
    if way in OUTPUTS:
        asked(victim, "logs", damaged[way], "--rank", "0")


def test_a_job_of_a_newer_phalanx_is_one_line_and_its_logs_say_what_to_do(victim, damaged):
    todo = f"job {damaged[NEWER]} was made by a newer phalanx (format 2; this one reads 1): pip install -U phalanx"
    assert listed(victim)[damaged[NEWER]]["message"] == todo
    assert todo in asked(victim, "logs", damaged[NEWER])


@pytest.mark.parametrize("way", [*KINDS, *ORPHANS, NEWER])
def test_a_stop_ends_a_damaged_job_in_time(victim, doomed):
    asked(victim, "stop", doomed)


def test_a_head_that_has_come_back_settles_jobs_past_what_is_damaged(victim, damaged):
    """By the command that it finds in the table."""
    table = json.loads((victim.state / "clusters/damaged/cluster.json").read_text())["table"]
    item = api(victim, "dynamodb").get_item(TableName=table, Key={"item": {"S": "settle"}})["Item"]
    listed = victim.on("head", item["command"]["S"], timeout_s=ANSWER_S).splitlines()
    assert {json.loads(line)["id"] for line in listed} > set(damaged.values())


def test_a_job_that_damages_its_own_record_is_followed_to_its_end(victim):
    own = f"cd {JOBS}/$PHALANX_JOB && echo '[' > state.json && echo first && sleep 1 && echo last"
    done = run(victim, "sh", "-c", own)
    assert "[0] last" in done.stdout and "succeeded" in done.stderr
    job_id = done.stderr.split()[1]
    assert listed(victim)[job_id]["state"] == "succeeded"


def test_a_job_that_damages_its_own_record_can_be_stopped(victim):
    own = f"cd {JOBS}/$PHALANX_JOB && rm state.json && mkfifo state.json && echo ready && exec sleep 4711"
    job_id = victim.phalanx("run", "--detach", "--launcher", "exec", "--", "sh", "-c", own).stdout.strip()
    victim.wait_until_printed(job_id, "ready")
    assert listed(victim)[job_id]["state"] == "damaged"
    shown = asked(victim, "stop", job_id)
    assert is_proven(shown)
    assert "4711" not in victim.on("head", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '", check=False)


# The first task of an array writes its conductor's record and output, and takes the places of the other tasks.
CONDUCTS = r"""
import os, sys
own, sound = os.environ["PHALANX_ARRAY_JOB"], sys.argv[1]
if os.environ["PHALANX_ARRAY_INDEX"] == "1":
    os.chdir(sys.argv[2])
    os.mkdir(f"{own}.2")
    os.mkfifo(f"{own}.2/state.json")
    os.symlink(sound, f"{own}.3")
    for name in ("state.json", "output/processes"):
        os.unlink(f"{own}/{name}")
        os.mkfifo(f"{own}/{name}")
"""


def test_a_task_that_damages_its_array_ends_no_other_job_and_writes_to_none(victim, sound):
    before = victim.on("head", f"cat {JOBS}/{sound}/state.json")
    words = ("--launcher", "exec", "--array", "1-4%1", "--", "python3", "-c", CONDUCTS, sound, JOBS)
    array = victim.phalanx("run", "--detach", *words).stdout.strip()
    asked(victim, "logs", "-f", array)
    assert listed(victim)[array]["tasks"] == {"succeeded": 2, "damaged": 2}
    for verb in ("logs", "jobs", "stop"):
        for job in (array, f"{array}.2", f"{array}.3"):
            asked(victim, verb, job)
    assert victim.on("head", f"cat {JOBS}/{sound}/state.json") == before
    victim.on("head", f"rm -r {JOBS}/{array}*")


def test_results_of_a_sound_job_come_home_beside_damaged_ones(victim, sound, damaged, tmp_path):
    victim.phalanx("get", sound, "kept", str(tmp_path), timeout_s=ANSWER_S)
    assert (tmp_path / "kept").read_text() == "kept\n"


# Two thousand directories, one in the other, where a submission that was cut off would have left one, and beside it.
NEST = r"""
import os, sys
for top in sys.argv[1:]:
    os.mkdir(top)
    here = os.open(top, os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("d", dir_fd=here)
        here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.utime(top, (0, 0))
"""


def test_directories_nested_deeper_than_calls_hide_no_job_and_are_deleted(victim, sound):
    unknown = f"{JOBS}/991231-235959-badbad"
    run(victim, "python3", "-c", NEST, unknown, "/efs/nested")
    assert listed(victim)[sound]["state"] == "succeeded"
    asked(victim, "status")
    assert "kept" in asked(victim, "logs", sound)
    assert victim.on("head", f"ls -d {unknown}", check=False) == ""


def test_the_local_cloud_ends_and_starts_after_a_job_has_nested_directories():
    with a_cluster(SPEC.replace("name: damaged", "name: nested")) as terminal:
        terminal.on("head", f"python3 -c '{NEST}' /efs/nested /tmp/nested /dev/shm/nested")
        terminal.phalanx("down", "--yes")
        assert not list((terminal.state / "local").glob("efs/fs-*"))
        terminal.phalanx("up", "--yes")
        assert terminal.on("head", "ls /efs") == ""
