"""The examples, shortened, as jobs on a real cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import EXAMPLES, ONE_THREAD, Terminal

pytestmark = pytest.mark.cluster
GETTING_STARTED = EXAMPLES.parent / "docs" / "getting-started.md"


def test_hello_mpi_runs_on_every_node(cluster):
    job = cluster.phalanx(
        *("run", "--directory", str(EXAMPLES / "hello_mpi"), "--launcher", "mpi", "-n", "8", "-N", "2"),
        *("--", "python", "hello.py"),
    )
    assert job.stdout.count("hello from rank") == 8
    assert "the sum of 1…8 over all ranks is 36" in job.stdout


@pytest.mark.skipif(not Path("/usr/share/datasets/fashion-mnist").exists(), reason="needs dataset-fashion-mnist")
def test_fashion_mnist_trains_checkpoints_and_passes_its_evaluation(cluster):
    code = ("run", "--directory", str(EXAMPLES / "fashion_mnist"))
    training = cluster.phalanx(
        *(*code, *ONE_THREAD, "--launcher", "torchrun", "-n", "2", "-N", "1"),
        *("--", "train.py", "--epochs", "1", "--out", "/efs/fashion_mnist"),
        timeout_s=300,
    )
    assert "[0] 2 processes, 55,000 training images" in training.stdout
    assert "validation/main/accuracy" in training.stdout
    evaluation = cluster.phalanx(
        *(*code, *ONE_THREAD, "--launcher", "exec", "-n", "1"),
        *("--", "python", "evaluate.py", "/efs/fashion_mnist/checkpoint.pt", "--at-least", "0.8"),
    )
    assert "test accuracy 0.8" in evaluation.stdout


def test_the_commands_of_getting_started_run_one_after_the_other(cluster, tmp_path):
    sections = dict(re.findall(r"^## \d\. (.+?)\n(.*?)(?=^## )", GETTING_STARTED.read_text(), re.MULTILINE | re.DOTALL))
    # Install is `make fresh`, and Train takes a minute: a shorter training is above.
    page = "".join(text for title, text in sections.items() if title not in ("Install", "Train"))
    # `down` asks on a terminal, and there is none here.
    script = as_script(page).replace("phalanx down", "phalanx down --yes --keep no")
    done = subprocess.run(
        ["bash", "-exc", script],
        env={**os.environ, **phalanx_variables(cluster), "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(set(re.findall(r"rank \d of \d", done.stdout))) == [f"rank {rank} of 4" for rank in range(4)]
    assert "Cluster first is deleted; nothing of it is left" in done.stdout


def as_script(page: str) -> str:
    """Return the page's commands, and its program as a command that writes hello.py, in the page's order."""
    lines: list[str] = []
    for language, block in re.findall(r"```(console|python)\n(.*?)```", page, re.DOTALL):
        if language == "python":
            lines.append(f"cat > hello.py <<'END'\n{block}END")
        else:
            lines += re.findall(r"^\$ (.+)$", block, re.MULTILINE)
    return "\n".join(lines)


def phalanx_variables(cluster: Terminal) -> dict[str, str]:
    """Return the variables with which a shell finds phalanx and this test's local cloud."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PHALANX_STATE_DIR": str(cluster.state), "PATH": path}
