"""The scripts of `phalanx tf-scripts`, run by bash: tasks start, and servers end after the last worker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from phalanx.jobs.trainer_scripts import Host, scripts

LIMIT_S = 120

# A server writes its pid and serves; a worker runs until a file exists.
_PROGRAM = """
import os, sys, time
flags = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
print(os.environ.get("CUDA_VISIBLE_DEVICES"), os.getcwd(), sys.argv[1], flush=True)
open(f"{flags['job_name']}{flags['task_index']}.pid", "w").write(str(os.getpid()))
while flags["job_name"] == "ps" or not os.path.exists("end" + flags["task_index"]):
    time.sleep(0.05)
sys.exit(int(flags["task_index"]))
"""


def wait_until(condition, what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"after {LIMIT_S} s: {what}"
        time.sleep(0.05)


def is_alive(pid_file: Path) -> bool:
    return Path("/proc", pid_file.read_text()).exists()


# The scripts' waits, counted and shortened.
_SLEEP = {"BASH_FUNC_sleep%%": "() { echo >>turns; command sleep 0.05; }"}


def turns_in(directory: Path) -> int:
    path = directory / "turns"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_servers_end_when_the_last_worker_of_all_hosts_has(tmp_path):
    (tmp_path / "program.py").write_text(_PROGRAM)
    logs = tmp_path / "all logs"
    logs.mkdir()
    # An earlier run had more workers.
    for number in range(4):
        (logs / f"worker{number}.exit").write_text("0\n")
    texts = scripts(
        [Host("one", 1, has_gpus=False), Host("two", 1, has_gpus=True)],
        sys.executable,
        (str(tmp_path / "program.py"), "a b"),
        str(logs),
    )
    for text in texts.values():
        done = subprocess.run(
            ["bash", "-c", text], env={**os.environ, **_SLEEP}, capture_output=True, timeout=LIMIT_S, check=True
        )
        assert done.stderr == b""
    pids = {name: tmp_path / f"{name}.pid" for name in ("ps0", "ps1", "worker0", "worker1")}
    try:
        wait_until(lambda: all(path.exists() and path.read_text() for path in pids.values()), "not all tasks started")

        (tmp_path / "end0").touch()
        wait_until((logs / "worker0.exit").exists, "worker 0 did not end")
        seen = turns_in(tmp_path)
        wait_until(lambda: turns_in(tmp_path) >= seen + 6, "nobody looks whether all workers have ended")
        assert is_alive(pids["ps0"])
        assert is_alive(pids["ps1"])

        (tmp_path / "end1").touch()
        wait_until(lambda: not is_alive(pids["ps0"]) and not is_alive(pids["ps1"]), "the servers did not end")
    finally:
        for name in ("end0", "end1"):
            (tmp_path / name).touch()
    assert (logs / "worker1.exit").read_text() == "1\n"
    assert (logs / "worker0").read_text() == f"None {tmp_path} a b\n"
    assert (logs / "worker1").read_text() == f"0 {tmp_path} a b\n"
    assert (logs / "ps1").read_text() == f" {tmp_path} a b\n"
