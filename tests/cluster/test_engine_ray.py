"""A Ray cluster for the time of a job over three nodes, of which nothing is left."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from terminals import Terminal
from verdicts import is_proven

pytestmark = pytest.mark.cluster

FIRST_USE_S = 900
LEFT = "ls -A /tmp /dev/shm | grep -E 'phalanx-[0-9]|ray|plasma'; ps -eo args= | grep -E '[r]aylet|[g]cs_s'; echo end"


def test_a_search_over_three_nodes_leaves_nothing_of_ray(engines):
    example = engines.with_example("ray_fashion_mnist")
    arguments = (
        "--recipe",
        "ray",
        "--launcher",
        "ray",
        "-n",
        "3",
        "-N",
        "1",
        "--",
        "python",
        "sweep.py",
        "--epochs",
        "1",
    )
    done = example.phalanx("run", *arguments, "--at-least", "0.78", timeout_s=FIRST_USE_S)
    assert "[0] 3 nodes, 3 CPUs" in done.stdout
    assert len(re.findall(r"0\.[78]\d+  ip-", done.stdout)) == 12
    assert "Next steps" not in done.stdout + done.stderr
    assert is_proven(done.stderr, 4)
    assert_nothing_of_ray_is_left(engines)


def assert_nothing_of_ray_is_left(engines: Terminal) -> None:
    for node in ("head", "deeplearning-worker2", "deeplearning-worker3"):
        assert engines.on(node, LEFT) == "end\n"


def test_a_killed_raylet_ends_the_job_and_leaves_nothing_of_ray(engines, tmp_path):
    arguments = ("--directory", str(tmp_path), "--recipe", "ray", "--launcher", "ray", "-n", "2", "-N", "1", "--detach")
    begins = ("--", "sh", "-c", "echo begins; exec sleep 4711")
    job_id = engines.phalanx("run", *arguments, *begins, timeout_s=FIRST_USE_S).stdout.strip()
    begun = f"until grep -qs begins /efs/.phalanx/jobs/{job_id}/output/rank-0.log; do sleep 0.2; done"
    engines.on("head", f"timeout {FIRST_USE_S} sh -c {shlex.quote(begun)}", timeout_s=FIRST_USE_S)
    engines.on("deeplearning-worker2", "pkill -KILL -x raylet")
    done = engines.phalanx("logs", "-f", job_id, check=False)
    job = json.loads(engines.on("head", f"cat /efs/.phalanx/jobs/{job_id}/state.json"))
    assert (job["state"], done.returncode) == ("failed", 1), done.stderr
    assert job["message"].startswith("ray@deeplearning-worker2 ended with exit code 1"), done.stderr
    assert is_proven(done.stderr, 4)
    assert_nothing_of_ray_is_left(engines)
