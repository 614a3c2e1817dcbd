"""The commands that docs/interface.md promises, as programs use them: each in a process of its own."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import localcloud
from localcloud.daemon import endpoint_file
from localcloud.storage import file_system_records
from localcloud.weather.forecast import KINDS, RULES

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Run `localcloud NAME … --state DIR`."""

    def run(name: str, *words: str, state: Path | None = tmp_path / "state") -> subprocess.CompletedProcess[str]:
        place = ["--state", str(state)] if state else []
        argv = [sys.executable, "-m", "localcloud", name, *words, *place]
        return subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=120)

    return run


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_version_names_the_code(command):
    assert answer(command("version", state=None)) == {"version": localcloud.__version__, "code": localcloud.code()}


def test_the_weather_is_kept_until_it_is_off(command):
    kept = answer(command("weather", "7", "--only", "launches", "--speed", "10"))
    assert (kept["seed"], kept["kinds"], kept["speed"], kept["events"]) == (7, ["launches"], 10, [])
    assert kept["known"] == {**KINDS, **RULES}
    assert answer(command("weather")) == kept
    assert answer(command("weather", "off"))["seed"] is None


@pytest.mark.parametrize(
    ("words", "reason"), [(["7", "--only", "rain"], "rain"), (["x"], "'x'"), (["7", "--speed", "0"], "speed")]
)
def test_a_weather_that_does_not_exist_is_refused_and_changes_nothing(command, words, reason):
    done = command("weather", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr
    assert answer(command("weather"))["seed"] is None


def test_the_account_is_kept_and_changes_only_while_nothing_runs(command, tmp_path):
    assert answer(command("account"))["profile"] == "own"
    assert len(answer(command("account", "landing-zone"))["subnets"]) == 2
    assert answer(command("account"))["profile"] == "landing-zone"
    assert command("account", "somebody-s").returncode == 1
    answer(command("account", "fresh"))
    record = {"url": "http://127.0.0.1:9", "secret_access_key": "", **endpoint_file.process_record(os.getpid())}
    endpoint_file.write(tmp_path / "state", record)
    assert command("account", "own").returncode == 1
    assert answer(command("account"))["profile"] == "fresh"


def test_the_number_of_gpus_is_kept(command):
    assert answer(command("gpus")) == {"gpus": 0}
    assert answer(command("gpus", "4")) == answer(command("gpus")) == {"gpus": 4}
    assert command("gpus", "17").returncode == 1


def test_kept_file_systems_are_listed_with_those_whose_record_is_damaged(command, tmp_path):
    state = tmp_path / "state"
    (state / "efs").mkdir(parents=True)
    tags = [{"Key": "team", "Value": "a"}]
    file_system_records.write(file_system_records.path_of(state, "fs-1"), {"region": "eu-west-1", "tags": tags})
    file_system_records.path_of(state, "fs-2").write_text("{")
    found = {one["id"]: one for one in answer(command("file-systems"))}
    assert (found["fs-1"]["region"], found["fs-1"]["tags"]) == ("eu-west-1", {"team": "a"})
    assert (found["fs-2"]["region"], found["fs-2"]["record"]) == ("", str(state / "efs/fs-2.json"))


def test_without_a_local_cloud_nothing_is_stopped_and_clients_get_no_address(command, tmp_path):
    assert answer(command("stop")) == {"stopped": False, "stacks": []}
    for name in ("env", "status"):
        done = command(name)
        assert (done.returncode, done.stdout) == (1, "")
        assert str(tmp_path / "state") in done.stderr


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock, with its record in it, and answers nothing."""
    lock = tmp_path / "state/lock"
    lock.parent.mkdir()
    code = f"import fcntl, time; held = open({str(lock)!r}, 'a'); fcntl.flock(held, fcntl.LOCK_EX); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-IS", "-c", code])
    while not is_held(lock):
        time.sleep(0.005)
    lock.write_text(json.dumps(endpoint_file.process_record(process.pid)))
    yield process
    process.kill()
    process.wait()


def is_held(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def test_one_that_ends_by_itself_is_waited_for(command, hung):
    """As when two programs stop it at once: its endpoint.json is gone before its last process."""
    ended = threading.Timer(1.0, hung.kill)
    ended.start()
    assert answer(command("stop")) == {"stopped": False, "stacks": []}
    assert hung.wait(60) == -9


def test_one_that_does_not_answer_is_ended_by_force_only(command, hung, tmp_path):
    record = {"url": "http://127.0.0.1:9", "secret_access_key": "", **endpoint_file.process_record(hung.pid)}
    endpoint_file.write(tmp_path / "state", record)
    done = command("stop")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"process {hung.pid}" in done.stderr
    assert hung.poll() is None
    assert answer(command("stop", "--force"))["stopped"]
    assert hung.wait(60) == -9
