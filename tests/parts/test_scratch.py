"""What a job's processes leave on a node is removed with the job, and nothing else is."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from phalanx.runner.starter import guard
from phalanx.runner.starter.scratch import Scratch

SHARED = Path("/dev/shm")


@pytest.fixture
def segment():
    paths = []

    def make(beginning: str) -> Path:
        path = SHARED / f"{beginning}{uuid.uuid4().hex}"
        path.write_bytes(bytes(4096))
        paths.append(path)
        return path

    yield make
    for path in paths:
        path.unlink(missing_ok=True)


@pytest.fixture
def scratch(tmp_path, monkeypatch) -> Scratch:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return Scratch("job")


def test_the_temporary_directory_is_the_users_alone_and_goes_with_all_in_it(scratch, tmp_path):
    scratch.make()
    assert Path(scratch.path).stat().st_mode & 0o777 == 0o700
    Path(scratch.path, "ray", "session").mkdir(parents=True)
    scratch.remove()
    assert list(tmp_path.iterdir()) == []


def test_segments_that_engines_left_since_go_and_others_stay(scratch, segment):
    left, users = segment("sm_segment."), segment("dataset.")
    earlier = segment("vader_segment.")
    os.utime(earlier, (1, 1))
    scratch.remove()
    assert [path.exists() for path in (left, users, earlier)] == [False, True, True]


def test_a_segment_that_somebody_has_mapped_stays(scratch, segment):
    path = segment("mpich_shm_")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        scratch.remove()
    assert path.exists()


def test_hydras_files_stay_while_one_of_its_daemons_runs(scratch, tmp_path, monkeypatch):
    place = tmp_path / "short"
    place.mkdir()
    monkeypatch.setattr("phalanx.runner.starter.scratch._SHORT_TEMPORARY", str(place))
    monkeypatch.setattr(
        "phalanx.runner.starter.scratch._HYDRAS_DAEMON", "test_hydra_proxy"
    )  # real ones may run on this machine
    (place / "hydra_hwloc_xmlfile_abc").touch()
    with subprocess.Popen(["/usr/bin/test_hydra_proxy", "60"], executable="/bin/sleep") as daemon:
        # A program that has just started has no command line for a moment.
        while not Path(f"/proc/{daemon.pid}/cmdline").read_bytes():
            time.sleep(0.001)
        scratch.remove()
        assert list(place.iterdir()) != []
        daemon.kill()
    scratch.remove()
    assert list(place.iterdir()) == []


def test_a_full_disk_is_reported_in_words(capfd):
    guard._complain(OSError(errno.ENOSPC, "No space left on device", "/tmp/phalanx-1"))
    assert capfd.readouterr().err == "it has no room for a job: No space left on device: /tmp/phalanx-1\n"
