"""What a job's processes leave on a node is removed with the job, and nothing else is."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import socket
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from fake_jobs import run, wait_for_line
from fake_nodes import change_runner

from phalanx.jobs.job import JobSpec, submit
from phalanx.runner.checked import VERB_AT
from phalanx.runner.reaper import has_other_starters
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


@pytest.mark.parametrize("is_alone", [True, False])
def test_segments_that_engines_left_go_with_earlier_ones_if_no_other_job_is_there(
    scratch, segment, monkeypatch, is_alone
):
    monkeypatch.setattr("phalanx.runner.starter.scratch.has_other_starters", lambda _: not is_alone)
    left, users = segment("sm_segment."), segment("dataset.")
    earlier = segment("vader_segment.")
    os.utime(earlier, (1, 1))
    scratch.remove()
    assert [path.exists() for path in (left, users, earlier)] == [False, True, not is_alone]


@pytest.fixture
def alone(monkeypatch):
    """No other job is on this node, whatever tests run on this machine."""
    monkeypatch.setattr("phalanx.runner.starter.scratch.has_other_starters", lambda _: False)


@pytest.mark.parametrize("beginning", ["torch_1234_", "psm_", "nccl-", "mx_0001_", "sem.mp-", "sem.user"])
def test_shared_memory_that_libraries_left_goes_also_that_of_earlier_jobs(scratch, segment, alone, beginning):
    left, earlier, users = segment(beginning), segment(beginning), segment("dataset.")
    os.utime(earlier, (1, 1))
    scratch.remove()
    assert [path.exists() for path in (left, earlier, users)] == [False, False, True]


def test_a_directory_of_joblib_goes_unless_a_process_uses_a_file_in_it(scratch, alone):
    folder = SHARED / f"joblib_memmapping_folder_{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        with (folder / "0.pkl").open("w"):
            scratch.remove()
            assert folder.exists()
        scratch.remove()
        assert not folder.exists()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_shared_memory_that_a_process_has_open_stays(scratch, segment, alone):
    path = segment("psm_")
    with path.open():
        scratch.remove()
        assert path.exists()


def test_what_the_user_put_there_before_a_job_that_reads_it_stays(segment, alone, monkeypatch):
    users = segment("weights.")
    scratch = Scratch("job")
    monkeypatch.setattr("phalanx.runner.starter.scratch.find", lambda *_: [(os.getpid(), "")])
    with users.open():
        scratch.look(last=True)
    scratch.remove()
    assert users.exists()


def test_shared_memory_of_libraries_stays_while_another_job_is_on_the_node(scratch, segment):
    path = segment("torch_1234_")
    argv = ["starter", *["-"] * (VERB_AT - 1), "starter", "other"]
    with subprocess.Popen(["sh", "-c", "read -r line", *argv[3:]], stdin=subprocess.PIPE) as other:
        while not Path(f"/proc/{other.pid}/cmdline").read_bytes().endswith(b"other\0"):
            time.sleep(0.001)
        assert has_other_starters("job")
        scratch.remove()
        assert path.exists()
        other.communicate(b"\n")


# A rank that has shared memory mapped under a name as PyTorch gives, and does not remove it.
HOLD = """import mmap, os, sys, time
file = open(sys.argv[1], "w+b")
file.truncate(4096)
memory = mmap.mmap(file.fileno(), 4096)
file.close()
print("on", flush=True)
time.sleep(300)"""


@pytest.mark.parametrize("names", ["torch_0_", "weights."])
def test_what_a_job_left_goes_while_another_job_on_the_node_keeps_its_own(two_nodes, code, segment, names):
    segments = [segment(names), segment(names)]
    for path in segments:
        path.unlink()
    commands = [("python", "-c", HOLD, str(path)) for path in segments]
    jobs = [submit(two_nodes, JobSpec(each, "exec", processes=1, directory=code)) for each in commands]
    for job in jobs:
        wait_for_line(job.follow(), "on")
    jobs[0].stop()
    assert [path.exists() for path in segments] == [False, True]
    jobs[1].stop()
    assert [path.exists() for path in segments] == [False, False]


def test_what_a_killed_rank_left_goes_while_another_job_is_on_the_node(two_nodes, code, segment, monkeypatch):
    change_runner(monkeypatch, ("runner/liveness.py", "^BEAT_EVERY_S = 2.0$", "BEAT_EVERY_S = 0.1"))
    left, held = segment("psm_"), segment("psm_")
    other = submit(two_nodes, JobSpec(("python", "-c", HOLD, str(held)), "exec", processes=1, directory=code))
    wait_for_line(other.follow(), "on")
    # PyTorch's loaders make new ones all the time, with their pid in the name.
    late = "touch /dev/shm/torch_$!_1_2; echo $!"
    killed = ("sh", "-c", f'python -c "$0" "$1" & sleep 1; {late}; kill -KILL $!; wait', HOLD, str(left))
    lines, status = run(two_nodes, code, *killed, processes=1)
    assert status.state.value == "succeeded"
    assert [left.exists(), held.exists()] == [False, True]
    assert not (SHARED / f"torch_{lines[-1].split()[-1]}_1_2").exists()
    other.stop()


def test_segments_of_system_v_that_were_left_since_go_and_attached_ones_stay(scratch, alone):
    libc = ctypes.CDLL(None)
    libc.shmat.restype = ctypes.c_void_p
    left, used = (libc.shmget(0, 4096, 0o600) for _ in range(2))
    place = libc.shmat(used, None, 0)
    scratch.remove()
    there = [line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()]
    libc.shmdt(ctypes.c_void_p(place))
    libc.shmctl(used, 0, None)
    assert [str(one) in there for one in (left, used)] == [False, True]


def of_system_v(kind):
    return {int(line.split()[1]) for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]}


def test_semaphores_and_queues_of_system_v_that_the_job_made_go_and_earlier_ones_stay(tmp_path, monkeypatch, alone):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    libc = ctypes.CDLL(None)
    earlier = (libc.semget(0, 2, 0o600), libc.msgget(0, 0o600))
    scratch = Scratch("job")
    left = (libc.semget(0, 2, 0o600), libc.msgget(0, 0o600))
    try:
        # As another job's end would have it.
        monkeypatch.setattr("phalanx.runner.starter.scratch.has_other_starters", lambda _: True)
        scratch.remove()
        assert left[0] in of_system_v("sem") and left[1] in of_system_v("msg")
        monkeypatch.setattr("phalanx.runner.starter.scratch.has_other_starters", lambda _: False)
        scratch.remove()
        assert [number in of_system_v(kind) for kind, number in zip(("sem", "msg"), left, strict=True)] == [False] * 2
        assert [number in of_system_v(kind) for kind, number in zip(("sem", "msg"), earlier, strict=True)] == [True] * 2
    finally:
        libc.semctl(earlier[0], 0, 0)
        libc.msgctl(earlier[1], 0, None)


# A rank that makes shared memory of System V, as Open MPI, PostgreSQL and X do, and leaves it.
OF_SYSTEM_V = "import ctypes, time; print(ctypes.CDLL(None).shmget(0, 4096, 0o1600), flush=True); time.sleep({})"


def test_shared_memory_of_system_v_goes_with_its_job_while_another_job_keeps_its_own(two_nodes, code, monkeypatch):
    change_runner(monkeypatch, ("runner/liveness.py", "^BEAT_EVERY_S = 2.0$", "BEAT_EVERY_S = 0.1"))
    other = submit(two_nodes, JobSpec(("python", "-c", OF_SYSTEM_V.format(300)), "exec", processes=1, directory=code))
    kept = int(next(event.data for event in other.follow() if hasattr(event, "data")))
    lines, _ = run(two_nodes, code, "python", "-c", OF_SYSTEM_V.format(1), processes=1)
    assert [number in of_system_v("shm") for number in (int(lines[-1].split()[-1]), kept)] == [False, True]
    other.stop()
    assert kept not in of_system_v("shm")


def test_an_abandoned_socket_goes_and_one_that_is_served_stays(scratch, alone, monkeypatch, tmp_path):
    monkeypatch.setattr("phalanx.runner.starter.scratch._SHORT_TEMPORARY", str(tmp_path))
    with socket.socket(socket.AF_UNIX) as served, socket.socket(socket.AF_UNIX) as ended:
        served.bind(str(tmp_path / "a served one"))
        ended.bind(str(tmp_path / "abandoned"))
        ended.close()
        (tmp_path / "file").write_text("the user's")
        monkeypatch.chdir(tmp_path)
        (tmp_path / "below").mkdir()
        with (
            socket.socket(socket.AF_UNIX) as relative,
            socket.socket(socket.AF_UNIX) as renamed,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        ):
            relative.bind("below/../a relative one")
            renamed.bind(str(tmp_path / "new"))
            (tmp_path / "new").rename(tmp_path / "a renamed one")
            datagrams.bind(str(tmp_path / "datagrams"))
            (tmp_path / "link").symlink_to("abandoned")
            scratch.remove()
            left = {path.name for path in tmp_path.iterdir()}
    assert left == {"a served one", "a relative one", "a renamed one", "datagrams", "file", "below", "link"}


def test_a_queue_of_posix_goes_where_they_are_files(scratch, alone, monkeypatch, tmp_path):
    monkeypatch.setattr("phalanx.runner.starter.scratch._QUEUES", str(tmp_path))
    (tmp_path / "queue").touch()
    scratch.remove()
    assert not (tmp_path / "queue").exists()


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


@pytest.mark.parametrize("name", ["a\x0b", "a\x1c", "a\x85", "a \u2028", "a\n"])
def test_a_job_s_files_stop_no_look_at_what_is_in_use_whatever_their_names(scratch, segment, monkeypatch, name):
    """Another job's, too: all are one user's."""
    monkeypatch.setattr("phalanx.runner.starter.scratch.has_other_starters", lambda _: True)
    inside = SHARED / f"{name}{uuid.uuid4().hex}"
    # What follows the end of the line looks like a line of its own.
    (inside / "\x0b/dev/shm").mkdir(parents=True)
    left = segment("sm_segment.")
    try:
        (inside / "\x0b/dev/shm/file").write_bytes(bytes(4096))
        with (inside / "\x0b/dev/shm/file").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            scratch.remove()
    finally:
        shutil.rmtree(inside)
    assert not left.exists()
