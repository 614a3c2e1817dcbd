"""Arrays of jobs on real nodes: their tasks, what is shown of them, how they end, and what goes on without a head."""

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
    return cluster.phalanx("run", "--directory", str(code), "--launcher", "exec", *words, check=False)


def listed(cluster: Terminal, *words: str) -> list[dict[str, object]]:
    return json.loads(cluster.phalanx("jobs", "--json", *words).stdout)


def test_each_task_is_a_job_with_its_number_its_code_and_its_output(cluster, code):
    script = "echo $PHALANX_ARRAY_INDEX of $PHALANX_ARRAY_COUNT >> own.txt; tail -n 1 own.txt"
    done = run(cluster, code, "--name", "seeds", "--array", "1-5:2,8", "-n", "2", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert {line.split(" ", 1)[1] for line in done.stdout.splitlines()} == {"1 of 4", "3 of 4", "5 of 4", "8 of 4"}
    array = listed(cluster, "--limit", "1")[0]
    assert (array["name"], array["tasks"], array["processes"], array["verified"]) == ("seeds", {"succeeded": 4}, 8, True)
    tasks = listed(cluster, "seeds")
    assert [task["id"].rpartition(".")[2] for task in tasks] == ["1", "3", "5", "8"]
    assert {task["state"] for task in tasks} == {"succeeded"}
    assert set(cluster.phalanx("logs", "seeds.3").stdout.splitlines()) == {"[0] 3 of 4", "[1] 3 of 4"}
    assert cluster.phalanx("logs", "seeds", "--rank", "8.1").stdout == "[8.1] 8 of 4\n"
    cluster.phalanx("get", "seeds.5", "own.txt", str(code / "five"))
    assert "5 of 4" in (code / "five").read_text()
