"""A Ray cluster for the time of a job over three nodes, of which nothing is left."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from conftest import Terminal

pytestmark = pytest.mark.cluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_fashion_mnist"
FIRST_USE_S = 900
LEFT = "ls -A /tmp /dev/shm | grep -E 'phalanx-|ray|plasma'; ps -eo args= | grep -E '[r]aylet|[g]cs_server'; echo end"


def test_a_search_over_three_nodes_leaves_nothing_of_ray(engines):
    directory = engines.state.parent / "ray"
    shutil.copytree(EXAMPLE, directory, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(engines.directory / "phalanx.yaml", directory)
    words = ("--recipe", "ray", "--launcher", "ray", "-n", "3", "-N", "1", "--", "python", "sweep.py", "--epochs", "1")
    done = Terminal(directory, engines.state).phalanx("run", *words, "--at-least", "0.78", timeout_s=FIRST_USE_S)
    assert "[0] 3 nodes, 3 CPUs" in done.stdout
    assert len(re.findall(r"0\.[78]\d+  ip-", done.stdout)) == 12
    assert "Next steps" not in done.stdout + done.stderr
    assert "no process of it is left on 4 nodes" in done.stderr
    for node in ("head", "deeplearning-worker2", "deeplearning-worker3"):
        assert engines.on(node, LEFT) == "end\n"
