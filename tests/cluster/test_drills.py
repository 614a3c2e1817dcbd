"""`python -m benchmarks.drill`: a cluster must end well, and Ctrl-C leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest
from benchmarks.measure import ROOT
from processes import identified, process_file, wait_until_gone
from terminals import Terminal, a_terminal

pytestmark = pytest.mark.cluster

# `up` is interrupted in bad weather.
SEED = 5
IDLE_S = 300.0  # until a cluster is up and has its fault


@pytest.fixture
def terminal():
    with a_terminal("name: bystander\ncloud: local\nnodes: 1\n") as made:
        yield made


def start(terminal: Terminal, seed: int, output: int, errors: IO[str] | int, **env: str) -> subprocess.Popen[str]:
    """Start the first drill of a seed in this environment, without waiting for it."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.drill", "--seed", str(seed), "--only", "0", "--json"],
        cwd=ROOT,
        env={**os.environ, "PHALANX_STATE_DIR": str(terminal.state), **env},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        text=True,
    )


def test_a_cluster_whose_up_was_interrupted_ends_well(terminal):
    """`make soak PART=drill` runs two hundred. One during which the machine became much busier proves nothing."""
    for _ in range(3):
        with start(terminal, SEED, subprocess.PIPE, subprocess.PIPE) as drilling:
            stdout, stderr = drilling.communicate(timeout=900)
        assert stdout, stderr
        (result,) = json.loads(stdout)
        if not result["void"]:
            break
    assert result["problems"] == []
    assert result["struck"] and "not struck" not in result["struck"]
    assert not terminal.state.exists() or not list(terminal.state.rglob("endpoint.json")), "it is apart from the user's"


def test_ctrl_c_ends_a_drill_with_its_cluster(terminal):
    temporary = terminal.directory.parent / "tmp"
    temporary.mkdir()
    shown = terminal.directory.parent / "shown"
    with shown.open("w") as output:
        drilling = start(terminal, 1, subprocess.DEVNULL, output, TMPDIR=str(temporary))
    deadline = time.monotonic() + IDLE_S
    while "idle" not in shown.read_text():
        assert drilling.poll() is None and time.monotonic() < deadline, shown.read_text()
        time.sleep(0.05)
    pids = (int(one.name) for one in Path("/proc").glob("[0-9]*"))
    started = identified(pid for pid in pids if is_below(pid, temporary))
    assert started
    drilling.send_signal(signal.SIGINT)
    assert drilling.wait(timeout=300) == 130
    assert "interrupted" in shown.read_text()
    assert not wait_until_gone(started)
    assert list(temporary.iterdir()) == []


def is_below(pid: int, directory: Path) -> bool:
    return os.fsencode(directory) in process_file(pid, "cmdline")
