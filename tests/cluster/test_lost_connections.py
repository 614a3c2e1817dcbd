"""The connection between this machine and the head is lost while a job is sent or followed, or files are copied."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from processes import process_file
from terminals import Terminal, shared_of

from phalanx.spec.spec_load import load_value
from phalanx.ssh import remote

pytestmark = pytest.mark.cluster


def shared_connections(cluster: Terminal) -> list[int]:
    """Return the ssh processes that hold this terminal's shared connections, by their options or their titles."""
    config, found = str(cluster.state).encode(), []
    # Other tests may have had other clusters in this state directory.
    name = load_value(cluster.directory / "phalanx.yaml", "name")
    socket = remote._digest(str(cluster.state / f"clusters/{name}"))
    for process in Path("/proc").glob("[0-9]*"):
        argv = process_file(int(process.name), "cmdline")
        if (b"ControlMaster=yes" in argv and config in argv) or (b"[mux]" in argv and socket.encode() in argv):
            found.append(int(process.name))
    return found


def lose_connection(cluster: Terminal) -> None:
    lost = shared_connections(cluster)
    assert lost
    for pid in lost:
        with suppress(ProcessLookupError):  # ssh's first process ends once the connection is in the background
            os.kill(pid, signal.SIGKILL)


def run_and_lose(cluster: Terminal, begun: Callable[[], bool], *words: str) -> tuple[int, str]:
    """Run a command, and lose the connection once it has begun; return its status and output."""
    with cluster.start(*words) as typed:
        try:
            deadline = time.monotonic() + 240
            while not begun():
                assert time.monotonic() < deadline and typed.poll() is None, words
                time.sleep(0.005)
            lose_connection(cluster)
            return typed.wait(timeout=300), typed.stdout.read() if typed.stdout else ""
        finally:
            typed.kill()


def has_part(directory: Path) -> bool:
    return any(directory.rglob(".phalanx-*.part"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory that takes a second to copy, named like the test."""
    place = tmp_path / f"files-{tmp_path.name}"
    (place / "sub").mkdir(parents=True)
    for number in range(4):
        (place / "sub" / f"{number}.bin").write_bytes(os.urandom(24 << 20))
    return place


def test_put_and_get_go_on_over_a_new_connection_and_copy_to_the_same_place(cluster, tmp_path, files):
    there = shared_of(cluster) / files.name
    status, shown = run_and_lose(cluster, lambda: has_part(there), "put", str(files), files.name)
    assert status == 0, shown
    assert [path.name for path in there.iterdir()] == ["sub"]
    home = tmp_path / "home"
    status, shown = run_and_lose(cluster, lambda: has_part(home), "get", f"/efs/{files.name}", str(home))
    assert status == 0, shown
    for number in range(4):
        assert (home / "sub" / f"{number}.bin").read_bytes() == (files / "sub" / f"{number}.bin").read_bytes()
    assert not has_part(there) and not has_part(home)


def test_a_job_is_sent_again_and_leaves_no_other_when_the_connection_is_lost_before_all_was_sent(cluster, files):
    jobs = shared_of(cluster) / ".phalanx/jobs"
    before = {path.name for path in jobs.glob("*")}
    options = ("--directory", str(files), "--launcher", "exec", "-n", "1", "--quiet", "--", "ls", "sub")
    is_sent = lambda: {path.name for path in jobs.glob("*")} != before  # noqa: E731
    status, shown = run_and_lose(cluster, is_sent, "run", *options)
    assert status == 0, shown
    assert [line for line in shown.splitlines() if line.startswith("[0] ")] == [f"[0] {n}.bin" for n in range(4)]
    deadline = time.monotonic() + 20
    while len({path.name for path in jobs.glob("*")} - before) > 1:  # the head finds out that the first has ended
        assert time.monotonic() < deadline
        time.sleep(0.1)


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
        lose_connection(cluster)
        (shared / tmp_path.name).touch()
        assert typed.wait(timeout=300) == 0
    finally:
        (shared / tmp_path.name).touch()
        typed.kill()
        typed.wait()
    assert shown.read_text() == "".join(f"[0] {n}\n" for n in range(1, 201))


def test_a_stop_arrives_although_the_connection_is_lost(cluster):
    script = "trap 'touch /efs/asked; sleep 4; exit' TERM; sleep 300 & wait"
    options = ("--directory", str(cluster.directory), "--launcher", "exec", "-n", "1", "--detach", "--name", "stops")
    cluster.phalanx("run", *options, "--", "sh", "-c", script)
    asked = shared_of(cluster) / "asked"
    status, shown = run_and_lose(cluster, asked.exists, "stop", "stops")
    assert (status, "stopped on request" in shown) == (0, True), shown
    assert json.loads(cluster.phalanx("jobs", "--json").stdout)[0]["state"] == "stopped"
