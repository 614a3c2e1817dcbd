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
ROOT = EXAMPLES.parent
DOCS = ROOT / "docs"
GETTING_STARTED = DOCS / "getting-started.md"
JOB_PAGES = (
    *(DOCS / f"{name}.md" for name in ("batch", "environments", "launchers")),
    *(path for path in sorted(EXAMPLES.glob("*/README.md")) if "$ phalanx run" in path.read_text()),
)


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


@pytest.mark.parametrize("page", JOB_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_jobs_of_a_page_are_planned_as_it_says(cluster, tmp_path, page):
    """By --dry-run: the engines themselves run in the tests of engines, and of schedulers."""
    for name in ("more.txt", "requirements.txt"):
        (tmp_path / name).write_text("requests\n")
    (tmp_path / "hosts").write_text("deeplearning-worker1\ndeeplearning-worker2\n")
    commands = re.findall(r"^\$ phalanx (run|launch) (.+)$", page.read_text(), re.MULTILINE)
    script = "".join(f"phalanx {verb} -c contract --dry-run {rest}\n" for verb, rest in commands)
    done = subprocess.run(
        ["bash", "-exc", script],
        cwd=tmp_path,
        env={**os.environ, **phalanx_variables(cluster)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("deeplearning-worker1") >= len(commands) > 0


def test_the_commands_of_older_tutorials_run_on_the_head(cluster):
    block = next(re.finditer(r"```console\n(.*?)```", (DOCS / "nodes.md").read_text(), re.DOTALL))[1]
    mpiexec, loop = re.findall(r"^\$ (.+)$", block, re.MULTILINE)
    assert len(set(cluster.on("head", loop).split())) == 4
    assert sorted(cluster.on("head", mpiexec).split()) == sorted(cluster.on("head", loop).split() * 2)


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
