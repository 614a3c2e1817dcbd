"""The connection between this machine and the head is lost while a job is followed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from processes import process_file
from terminals import Terminal, shared_of

pytestmark = pytest.mark.cluster


def shared_connections(cluster: Terminal) -> list[int]:
    """Return the ssh processes that hold this terminal's shared connections."""
    config, found = str(cluster.state).encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        argv = process_file(int(process.name), "cmdline")
        if b"ControlMaster=yes" in argv and config in argv:
            found.append(int(process.name))
    return found


def test_run_continues_over_a_new_connection_and_shows_every_line_once(cluster, tmp_path):
    shared = shared_of(cluster)
    script = f"seq 100; until [ -e /efs/{tmp_path.name} ]; do sleep 0.1; done; seq 101 200"
    arguments = (
        "run",
        "--directory",
        str(cluster.directory),
        "--launcher",
        "exec",
        "-n",
        "1",
        "--",
        "sh",
        "-c",
        script,
    )
    shown = tmp_path / "shown"
    with shown.open("w") as file:
        typed = cluster.start(*arguments, output=file, errors=None)
    try:
        deadline = time.monotonic() + 240
        while "[0] 100\n" not in shown.read_text():
            assert time.monotonic() < deadline, shown.read_text()
            time.sleep(0.05)
        lost = shared_connections(cluster)
        assert lost
        for pid in lost:
            with suppress(ProcessLookupError):  # ssh's first process ends once the connection is in the background
                os.kill(pid, signal.SIGKILL)
        (shared / tmp_path.name).touch()
        assert typed.wait(timeout=300) == 0
    finally:
        (shared / tmp_path.name).touch()
        typed.kill()
        typed.wait()
    assert shown.read_text() == "".join(f"[0] {n}\n" for n in range(1, 201))
