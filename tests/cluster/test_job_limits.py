"""A job's time limit, what it begins after, and which failures start it again, on real nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from terminals import Terminal

pytestmark = pytest.mark.cluster

SAVE = """
import os, signal, sys, time

def save(number, _):
    with open(os.environ["PHALANX_REASON"]) as file:
        print("told", signal.Signals(number).name, file.read(), flush=True)
    if sys.argv[1] == "leaves":
        sys.exit()

signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, lambda number, frame: (save(number, frame), sys.exit(0)))
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def code(tmp_path) -> Path:
    (tmp_path / "save.py").write_text(SAVE)
    return tmp_path


def run(cluster: Terminal, code: Path, *words: str):
    return cluster.phalanx("run", "--directory", str(code), "-N", "1", *words, check=False)


def newest(cluster: Terminal) -> dict[str, object]:
    return json.loads(cluster.phalanx("jobs", "--limit", "1", "--json").stdout)[0]


# The ranks must have their handlers before the limit.
@pytest.mark.parametrize(("launcher", "limit"), [("exec", "4s"), ("mpi", "4s"), ("torchrun", "8s")])
def test_at_the_limit_ranks_hear_of_it_and_are_ended_after_the_grace(cluster, code, launcher, limit):
    done = run(
        cluster, code, "--launcher", launcher, "--time", limit, "--grace", "2s", "--", "python3", "save.py", "stays"
    )
    assert done.returncode == 124, done.stderr
    assert done.stdout.count("told SIGUSR1 time") == done.stdout.count("told SIGTERM time") == 4
    job = newest(cluster)
    assert (job["state"], job["exit_code"], job["verified"]) == ("timed out", 124, True)


def test_ranks_that_save_and_leave_at_the_notice_end_the_job_before_the_grace(cluster, code):
    words = ("--time", "2s", "--grace", "10m", "--restarts", "3", "--", "python3", "save.py", "leaves")
    done = run(cluster, code, "--launcher", "exec", *words)
    assert (done.returncode, done.stdout.count("told SIGUSR1 time"), done.stdout.count("SIGTERM")) == (124, 4, 0)
    assert (newest(cluster)["state"], newest(cluster)["attempt"]) == ("timed out", 0)


def test_a_job_that_can_lose_nodes_ends_at_its_limit_too(cluster, code):
    elastic = ("--launcher", "torchrun", "--nodes", "1:4", "--restarts", "3", "--time", "8s", "--grace", "2s")
    done = run(cluster, code, *elastic, "--", "save.py", "leaves")
    assert (done.returncode, newest(cluster)["state"]) == (124, "timed out"), done.stderr


def test_a_rank_without_a_handler_is_not_ended_by_the_notice(cluster, code):
    done = run(
        cluster, code, "--launcher", "exec", "--time", "2s", "--grace", "3s", "--", "sh", "-c", "sleep 4; echo done"
    )
    assert (done.returncode, done.stdout.count("done")) == (124, 4)


def test_the_limit_counts_all_attempts(cluster, code):
    script = "sleep 2; exit $((3 + PHALANX_RESTART))"
    words = ("--time", "6s", "--grace", "0s", "--restarts", "9", "--", "sh", "-c", script)
    done = run(cluster, code, "--launcher", "exec", *words)
    assert done.returncode == 124, done.stderr
    assert 1 <= newest(cluster)["attempt"] <= 2


def test_a_stop_and_a_failure_tell_ranks_their_reasons(cluster, code):
    job_id = run(cluster, code, "--launcher", "exec", "--detach", "--", "python3", "save.py", "stays").stdout.strip()
    cluster.wait_until_printed(job_id, "ready", times=4)
    cluster.phalanx("stop", job_id)
    assert cluster.phalanx("logs", job_id).stdout.count("told SIGTERM stop") == 4
    fails = '[ "$RANK" != 1 ] || { sleep 2; exit 3; }; exec python3 save.py stays'
    done = run(cluster, code, "--launcher", "exec", "--", "sh", "-c", fails)
    assert (done.returncode, done.stdout.count("told SIGTERM failure")) == (3, 3)


def test_a_job_begins_when_others_have_ended_as_they_should(cluster, code):
    start = ("--launcher", "exec", "-n", "1", "--detach")
    cluster.phalanx(
        "run", "--directory", str(code), *start, "--name", "first", "--", "sh", "-c", "sleep 3; echo first > /efs/first"
    )
    cluster.phalanx("run", "--directory", str(code), *start, "--name", "bad", "--", "sh", "-c", "exit 4")
    reads = ("--launcher", "exec", "-n", "1", "--after", "first", "--after-any", "bad", "--", "cat", "/efs/first")
    done = cluster.phalanx("run", "--directory", str(code), *reads)
    assert done.stdout == "[0] first\n"
    assert "waiting for job" in done.stderr
    done = cluster.phalanx("run", "--directory", str(code), *start[:-1], "--after", "bad", "--", "true", check=False)
    assert (done.returncode, newest(cluster)["state"], newest(cluster)["processes"]) == (2, "failed", 0)
    done = cluster.phalanx("run", "--directory", str(code), "--after", "nothing", "--", "true", check=False)
    assert "there is no job 'nothing'" in done.stderr


def test_a_waiting_job_can_be_stopped(cluster, code):
    start = ("run", "--directory", str(code), "--launcher", "exec", "-n", "1", "--detach")
    cluster.phalanx(*start, "--name", "long", "--", "sleep", "4711")
    cluster.phalanx(*start, "--name", "later", "--after", "long", "--", "true")
    cluster.phalanx("stop", "later")
    assert newest(cluster)["state"] == "stopped"
    cluster.phalanx("stop", "long")


@pytest.mark.parametrize(("code_number", "attempts"), [(75, 1), (3, 0)])
def test_only_the_named_exit_codes_start_it_again(cluster, code, code_number, attempts):
    script = f"[ $PHALANX_RESTART = 1 ] || exit {code_number}"
    words = ("--launcher", "exec", "--restarts", "2", "--restart-on", "75,137", "--", "sh", "-c", script)
    done = run(cluster, code, *words)
    assert (done.returncode, newest(cluster)["attempt"]) == (0 if attempts else code_number, attempts)
