"""The limits of nodes' control groups, in a kernel with cgroup v2 that runs as a process: user-mode Linux."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import limited_nodes
import pytest

UML = Path(sys.prefix) / "uml"
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not (UML / "linux.uml").exists():
        pytest.skip("there is no .venv/uml: scripts/uml makes it, from packages of Debian")
    command = [
        *(UML / "linux.uml", "quiet", "mem=512M", "con0=fd:0,fd:1", "con=null"),
        *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"),
        *(f"init={sys.executable}", "--", limited_nodes.__file__),
    ]
    home = {"LD_PRELOAD": str(UML / "registers.so"), "HOME": str(tmp_path_factory.mktemp("home"))}
    output = tmp_path_factory.mktemp("uml") / "output"
    with output.open("w") as out:
        machine = subprocess.Popen(
            command, env=home, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            machine.wait(TIMEOUT_S)
        finally:
            # Its processes are processes of this machine.
            with suppress(ProcessLookupError):
                os.killpg(machine.pid, signal.SIGKILL)
            machine.wait()
    said = output.read_text(errors="replace")
    found = [line for line in said.splitlines() if line.startswith(limited_nodes.MARK)]
    assert found, said
    return json.loads(found[0].removeprefix(limited_nodes.MARK))


def test_a_node_takes_its_types_memory_and_its_disk_and_no_more(seen):
    """The kernel ends the process that wants more, and counts it where the node shows it."""
    most_mib = limited_nodes.MEMORY_MIB + limited_nodes.DISK_MIB
    assert most_mib - 8 <= seen["taken_mib"] <= most_mib
    assert seen["was_killed"]
    assert "oom_kill 1" in seen["events"].splitlines()


def test_a_node_has_eight_processes_for_each_mib_and_the_next_is_refused(seen):
    assert seen["processes"] == ["EAGAIN", str(8 * limited_nodes.CROWD_MIB)]


def test_a_node_that_reaches_its_limits_ends_no_process_of_another(seen):
    assert seen["neighbour_lives"]


def test_root_on_a_node_can_not_change_the_limits(seen):
    assert seen["lifted_by_root"] == {"memory.max": "EROFS", "pids.max": "EROFS"}


def test_nothing_is_left_of_the_groups(seen):
    assert seen["left"] == []
