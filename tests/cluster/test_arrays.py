"""Arrays of jobs on real nodes: their tasks, what is shown of them, how they end, and who goes on with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from terminals import Terminal

pytestmark = pytest.mark.cluster


@pytest.fixture
def code(tmp_path) -> Path:
    (tmp_path / "own.txt").write_text("x\n")
    return tmp_path


def run(cluster: Terminal, code: Path, *words: str):
    how = () if "--resume" in words else ("--launcher", "exec")
    return cluster.phalanx("run", "--directory", str(code), *how, *words, check=False)


def detached(cluster: Terminal, code: Path, *words: str) -> str:
    return run(cluster, code, "--detach", *words).stdout.strip()


def listed(cluster: Terminal, *words: str) -> list[dict[str, object]]:
    return json.loads(cluster.phalanx("jobs", "--json", *words).stdout)


def newest(cluster: Terminal) -> dict[str, object]:
    return listed(cluster, "--limit", "1")[0]


def states(cluster: Terminal, array: str) -> dict[str, object]:
    return {str(task["id"]).rpartition(".")[2]: task["state"] for task in listed(cluster, array)}


def on_head(cluster: Terminal, command: str) -> str:
    return cluster.phalanx("exec", "--node", "head", "--", "sh", "-c", command, check=False).stdout


def test_each_task_is_a_job_with_its_number_its_code_and_its_output(cluster, code):
    script = "echo $PHALANX_ARRAY_INDEX of $PHALANX_ARRAY_COUNT >> own.txt; tail -n 1 own.txt"
    words = ("--name", "seeds", "--tag", "of=seeds", "--array", "1-5:2,8", "-n", "2")
    done = run(cluster, code, *words, "--checkpoint", "checkpoints/seeds", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert {line.split(" ", 1)[1] for line in done.stdout.splitlines()} == {"1 of 4", "3 of 4", "5 of 4", "8 of 4"}
    array = newest(cluster)
    assert (array["name"], array["tasks"], array["processes"]) == ("seeds", {"succeeded": 4}, 8)
    assert (array["state"], array["verified"], len(array["nodes"])) == ("succeeded", True, 4)
    assert states(cluster, "seeds") == dict.fromkeys(("1", "3", "5", "8"), "succeeded")
    assert listed(cluster, "seeds", "--tag", "of=seeds")
    assert set(cluster.phalanx("logs", "seeds.3").stdout.splitlines()) == {"[0] 3 of 4", "[1] 3 of 4"}
    assert cluster.phalanx("logs", "seeds", "--rank", "8.1").stdout == "[8.1] 8 of 4\n"
    cluster.phalanx("get", "seeds.5", "own.txt", str(code / "five"))
    assert "5 of 4" in (code / "five").read_text()
    cluster.phalanx("get", "seeds", "own.txt", str(code / "all" / "of"))
    assert sorted(path.parent.name for path in code.glob("all/of/*/own.txt")) == ["1", "3", "5", "8"]
    assert on_head(cluster, "ls /efs/checkpoints/seeds").split() == ["1", "3", "5", "8"]


def test_an_array_ends_as_its_first_task_that_did_not_succeed(cluster, code):
    script = "[ $PHALANX_ARRAY_INDEX -lt 2 ] || exit $((10 - PHALANX_ARRAY_INDEX))"
    done = run(cluster, code, "--array", "0-3", "-n", "1", "--", "sh", "-c", script)
    array = newest(cluster)
    assert (done.returncode, array["state"], array["tasks"]) == (8, "failed", {"succeeded": 2, "failed": 2})
    assert str(array["message"]).startswith("2 of 4 tasks did not succeed: 2 (failed), 3 (failed); 2: rank 0 ")


def test_so_many_run_at_once_and_a_later_job_begins_after_all(cluster, code):
    own = "/efs/now/$PHALANX_ARRAY_INDEX"
    count = f"mkdir -p /efs/now; : > {own}; ls /efs/now | wc -l; sleep 1; rm {own}"
    array = detached(cluster, code, "--name", "two", "--array", "1-6%2", "-n", "1", "--", "sh", "-c", count)
    later = run(cluster, code, "--after", "two", "-n", "1", "--", "sh", "-c", "ls /efs/now | wc -l")
    assert later.stdout == "[0] 0\n", later.stderr
    counts = [int(line.rpartition(" ")[2]) for line in cluster.phalanx("logs", array).stdout.splitlines()]
    assert (len(counts), max(counts)) == (6, 2)


def test_what_tasks_leave_on_nodes_of_other_tasks_is_ended_with_the_array(cluster, code):
    leaves = "ssh deeplearning-worker$PHALANX_ARRAY_INDEX PHALANX_JOB=$PHALANX_JOB setsid sleep 4711 > /dev/null 2>&1 &"
    done = run(cluster, code, "--array", "3,4", "-n", "1", "--", "sh", "-c", f"{leaves} sleep 2")
    # Each task's own client of ssh, and what it has started there.
    assert (done.returncode, newest(cluster)["killed"], newest(cluster)["verified"]) == (0, 4, True), done.stderr


def test_one_task_or_all_can_be_stopped(cluster, code):
    array = detached(cluster, code, "--array", "1-4%2", "-n", "1", "--", "sh", "-c", "echo ready; exec sleep 4711")
    cluster.wait_until_printed(array, "ready", times=2)
    cluster.phalanx("stop", f"{array}.1")
    cluster.wait_until_printed(array, "ready", times=3)
    assert states(cluster, array) == {"1": "stopped", "2": "running", "3": "running"}
    missing = cluster.phalanx("logs", f"{array}.4", check=False)
    assert (missing.returncode, f"job {array} has no task 4 that has begun" in missing.stderr) == (2, True)
    done = cluster.phalanx("stop", array)
    assert "no process of it is left on 4 nodes" in done.stderr
    assert (newest(cluster)["state"], newest(cluster)["tasks"]) == ("stopped", {"pending": 1, "stopped": 3})
    assert set(states(cluster, array).values()) == {"stopped"}


def test_another_conductor_goes_on_where_the_first_was_killed(cluster, code):
    script = "echo $PHALANX_ARRAY_INDEX; sleep 3"
    array = detached(cluster, code, "--array", "1-6%2", "-n", "1", "--", "sh", "-c", script)
    cluster.wait_until_printed(array, "]", times=2)
    state = json.loads(on_head(cluster, f"cat /efs/.phalanx/jobs/{array}/state.json"))
    on_head(cluster, f"kill -9 {state['runner']['pid']}")
    done = cluster.phalanx("logs", "-f", array)
    assert sorted(done.stdout.splitlines()) == [f"[{index}.0] {index}" for index in range(1, 7)], done.stderr
    assert newest(cluster)["tasks"] == {"succeeded": 6}


def test_with_restarts_no_task_is_lost_with_the_runners_of_a_head(cluster, code):
    script = "echo $PHALANX_ARRAY_INDEX; sleep 3"
    words = ("--restarts", "2", "--array", "1-4%2", "-n", "1", "--", "sh", "-c", script)
    array = detached(cluster, code, *words)
    cluster.wait_until_printed(array, "]", times=2)
    # The conductor, the runners and their watchers have the command line of the submission.
    on_head(cluster, f"pkill -9 -f '[s]ubmit .*{array}'")
    cluster.phalanx("logs", "-f", array)
    assert newest(cluster)["tasks"] == {"succeeded": 4}
    assert [task["attempt"] for task in listed(cluster, array)] == [1, 1, 0, 0]


@pytest.mark.parametrize("words", [("-n", "1"), ("-n", "1", "--array", "1")])
def test_a_job_gets_another_name_and_other_tags_while_it_runs_and_later(cluster, code, words):
    begin = (
        "--name",
        "first",
        "--tag",
        "a=1",
        "--checkpoint",
        "named",
        *words,
        "--",
        "sh",
        "-c",
        "echo ready; sleep 4711",
    )
    job = detached(cluster, code, *begin)
    cluster.wait_until_printed(job, "ready")
    renamed = listed(cluster, "first", "--rename", "second", "--set-tag", "b=2", "--set-tag", "a=")
    cluster.phalanx("stop", "second")
    listed(cluster, job, "--rename", "third", "--set-tag", "c=3")
    ended = newest(cluster)
    assert [(one["id"], one["name"], one["tags"]) for one in (*renamed, ended)] == [
        (job, "second", {"b": "2"}),
        (job, "third", {"b": "2", "c": "3"}),
    ]
    assert ended["state"] == "stopped"
    assert run(cluster, code, "--resume", "third", "--", "true").returncode == 0
    assert newest(cluster)["name"] == "third"
    wrong = cluster.phalanx("jobs", "third", "--rename", "a/b", check=False)
    assert (wrong.returncode, "can't be a job's name" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(
    "words", [("--array", "0-9999"), ("--array", "5-3"), ("--array", ""), ("--array", "1%0"), ("--array", "20000")]
)
def test_what_is_no_array_is_refused_in_one_line(cluster, code, words):
    done = run(cluster, code, *words, "--", "true")
    assert (done.returncode, "--array: " in done.stderr, "Traceback" in done.stderr) == (2, True, False)
