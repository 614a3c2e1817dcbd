"""Jobs' records after everything was killed at once, or after a power failure: each is the old one or the new one."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from power_cuts import World, worlds

from phalanx.runner.files import state as states
from phalanx.runner.files.job_record import JobRecord
from phalanx.runner.files.job_status import JobState, JobStatus
from phalanx.runner.verbs.submit import _keep

KILLS = 10
SEED = 11
# Writes records as submissions and runners do, and prints each record whose write has returned.
WRITER = """
import os, sys
from phalanx.runner.files import state as states
from phalanx.runner.files.job_record import JobRecord
from phalanx.runner.files.job_status import JobState, JobStatus
from phalanx.runner.verbs.submit import _keep
number = 0
while True:
    number += 1
    job = JobRecord(("x" * 3000,), "exec", id=f"J{number}")
    directory = os.path.join(sys.argv[1], job.id)
    os.mkdir(directory)
    _keep(job, directory)
    for state in (JobState.PENDING, JobState.RUNNING, JobState.SUCCEEDED):
        states.write(directory, JobStatus.first(job)._replace(state=state))
        print(job.id, state.value, flush=True)
"""
ORDER = ("pending", "running", "succeeded")


def test_what_was_recorded_is_there_after_everything_was_killed_at_once(tmp_path: Path):
    chance = random.Random(SEED)
    for kill in range(KILLS):
        root = tmp_path / str(kill)
        root.mkdir()
        reported = killed_writer(root, 0.02 + chance.random() / 4)
        assert reported
        for job_id, reported_state in reported.items():
            found = states.read(str(root / job_id)).state.value
            assert ORDER.index(found) >= ORDER.index(reported_state)


def killed_writer(root: Path, after_s: float) -> dict[str, str]:
    """Run the writer and kill it; return the last state that it printed of each job."""
    argv = [sys.executable, "-c", WRITER, str(root)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as writer:
        assert writer.stdout
        first = writer.stdout.readline()
        time.sleep(after_s)
        os.killpg(writer.pid, signal.SIGKILL)
        lines = (first + writer.stdout.read()).split("\n")[:-1]
    return dict(line.split() for line in lines)


@dataclass
class Disk:
    """Replaces `os` in the module that writes records: performs the calls and records their order.

    A name belongs to its directory; a file's content is separate from its name.
    """

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    is_honest: bool = True
    _paths: dict[int, str] = field(default_factory=dict)
    _files: Iterator[int] = field(default_factory=itertools.count)
    _numbers: dict[int, int] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        fd = os.open(path, flags, mode)
        self._paths[fd] = path
        if flags & os.O_CREAT:
            self._numbers[fd] = next(self._files)
            self.calls.append(("name", path, self._numbers[fd]))
        return fd

    def write(self, fd: int, data: bytes) -> int:
        self.calls.append(("write", self._numbers[fd], bytes(data)))
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        is_directory = fd not in self._numbers
        if self.is_honest:
            self.calls.append(("sync names", self._paths[fd]) if is_directory else ("sync", self._numbers[fd]))

    def close(self, fd: int) -> None:
        self._numbers.pop(fd, None)
        os.close(fd)

    def mkdir(self, path: str) -> None:
        Path(path).mkdir()
        self.calls.append(("name", path, None))

    def replace(self, source: str, target: str) -> None:
        Path(source).replace(target)
        self.calls.append(("rename", source, target))

    def unlink(self, path: str) -> None:
        Path(path).unlink()
        self.calls.append(("unlink", path))


def make(world: World, root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, content in sorted(world.items()):
        place = root / Path(path).relative_to(root)
        if content is None:
            place.mkdir(exist_ok=True)
        elif place.parent.is_dir():
            place.write_bytes(content)


def history(root: Path, disk: Disk) -> list[tuple[int, str, str]]:
    """Record two jobs' lives on this disk; return (number of calls, job, recorded state)."""
    recorded = []
    for job_id in ("J1", "J2"):
        job = JobRecord(("true",), "exec", id=job_id)
        directory = str(root / job_id)
        disk.mkdir(directory)
        _keep(job, directory)
        for name in ORDER:
            states.write(directory, JobStatus.first(job)._replace(state=JobState(name)))
            if name != "running":  # the only state that may be lost
                recorded.append((len(disk.calls), job_id, name))
    return recorded


def damage(root: Path, disk: Disk, recorded: list[tuple[int, str, str]]) -> list[str]:
    """List the wrong records after every prefix of the calls, on every disk that it may leave."""
    seen, found = set(), []
    for end in range(len(disk.calls) + 1):
        latest = {job_id: name for at, job_id, name in recorded if at <= end}
        for world in worlds(disk.calls[:end]):
            kept = {path: content for path, content in world.items() if path.endswith("state.json")}
            key = repr((sorted(kept.items()), sorted(latest.items())))
            if key not in seen:
                seen.add(key)
                make(world, root)
                found += [f"after {end}: {why}" for why in wrong(root, latest)]
    return found


def wrong(root: Path, latest: dict[str, str]) -> Iterator[str]:
    for job_id, name in latest.items():
        following = ORDER[ORDER.index(name) :]
        try:
            state = states.read(str(root / job_id)).state.value
        except (OSError, ValueError) as error:
            yield f"{job_id}, which was {name}: {error!r}"
        else:
            if state not in following:
                yield f"{job_id} is {state}, and was {name}"


@pytest.mark.parametrize("is_honest", [True, False], ids=["as it is", "without fsync"])
def test_after_a_power_failure_every_record_is_the_old_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_honest: bool
):
    disk = Disk(is_honest=is_honest)
    monkeypatch.setattr(states, "os", disk)
    (tmp_path / "jobs").mkdir()
    recorded = history(tmp_path / "jobs", disk)
    monkeypatch.undo()
    found = damage(tmp_path / "jobs", disk, recorded)
    # The second case shows that the test detects a loss.
    assert (found == []) == is_honest, found[:5]
