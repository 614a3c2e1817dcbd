"""What each rank does: its stack, the odd rank first, and what the kernel says where there is no stack."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import user_mode_linux
from error_codes import raises_code
from fake_nodes import FakeCluster, change_runner, marked
from hanging_files import READ, a_hanging_file_system
from py_spy import bring_py_spy, fetch_py_spy

from phalanx.errors import SharedSilent
from phalanx.jobs import rank_stacks as stacks
from phalanx.jobs.job import Job, JobSpec, submit
from phalanx.runner import tracer

TRAIN = """
import os, sys, threading, time

def all_reduce():
    print("waits", flush=True)
    time.sleep(1000)

def load(path):
    print("reads", flush=True)
    open(path).read()

def save():
    lock = threading.Lock()
    lock.acquire()
    print("locks", flush=True)
    lock.acquire()

def leave():
    pass

rank = os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
odd = {"1": sys.argv[1], "6": sys.argv[2]}.get(rank, "all_reduce")
if odd == "load":
    load(sys.argv[3])
else:
    globals()[odd]()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeCluster]:
    cluster = FakeCluster(tmp_path, slots=4)
    bring_py_spy(Path(cluster.shared))
    yield cluster


@contextmanager
def training(cluster: FakeCluster, code: Path, *arguments: str, launcher: str = "exec", **options) -> Iterator[Job]:
    (code / "train.py").write_text(TRAIN)
    command = ("python", "train.py", *arguments)
    job = submit(cluster, JobSpec(command, launcher, processes=8, directory=code, **options), detach=True)
    try:
        yield job
    finally:
        job.stop()
        assert marked(job.id) == []


def soon(cluster: FakeCluster, job: Job, is_so: Callable[[stacks.JobStacks], bool]) -> stacks.JobStacks:
    deadline = time.monotonic() + 60
    while not is_so(found := stacks.take(cluster, job.id)):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return found


def waiting(found: stacks.JobStacks) -> int:
    return sum(one.place.startswith("all_reduce") for one in found.ranks)


def places(found: stacks.JobStacks) -> list[tuple[str, str, str]]:
    return [(stacks.named(group), group[0].does, group[0].place) for group in found.groups()]


def test_where_yama_forbids_to_read_others_ranks_let_phalanx_read_theirs(tmp_path):
    """In a kernel of Debian's, without the right to trace: under 2 and 3, only root may, or nobody."""
    if Path(__file__).is_relative_to("/tmp"):
        pytest.skip("the kernel has a /tmp of its own, which hides this checkout")
    fetch_py_spy()
    seen = user_mode_linux.boot(str(Path(__file__).parents[1] / "fakes/yama_machine.py"), tmp_path)
    known, forbidden = ["all_reduce (train.py:5)", ""], "the node's kernel forbids it (kernel.yama.ptrace_scope = {})"
    assert seen["0"] == seen["1"] == [known] * 2
    assert [[why for _, why in seen[scope]] for scope in "23"] == [[forbidden.format(scope)] * 2 for scope in "23"]


def test_a_rank_that_deadlocked_and_one_that_left_are_named_first(cluster, code):
    with training(cluster, code, "save", "leave") as job:
        found = soon(cluster, job, lambda found: waiting(found) == 6 and found.ended != ())
    assert found.ended == ("6",)
    assert places(found) == [
        ("rank 1", "waits", "save (train.py:16)"),
        ("ranks 0, 2-5, 7", "waits", "all_reduce (train.py:6)"),
    ]
    assert {one.node for one in found.ranks} == {"deeplearning-worker1", "deeplearning-worker2"}


def test_ranks_that_an_engine_started_are_seen_by_their_own_names(cluster, code):
    with training(cluster, code, "save", "all_reduce", launcher="mpi") as job:
        found = soon(cluster, job, lambda found: waiting(found) == 7)
    assert places(found)[0] == ("rank 1", "waits", "save (train.py:16)")


def test_a_rank_that_reads_from_a_frozen_directory_is_named_with_the_file(cluster, code, tmp_path):
    path = str(tmp_path / "away" / "file")
    with (
        training(cluster, code, "load", "all_reduce", path) as job,
        # Within it, because the rank can't end before.
        a_hanging_file_system(tmp_path / "away", READ, 1 << 20) as hangs,
    ):
        assert hangs.wait(60)
        found = soon(cluster, job, lambda found: waiting(found) == 7)
    assert places(found)[0][::2] == ("rank 1", "load (train.py:10)")
    assert found.groups()[0][0].reads == path and found.groups()[0][0].wchan


def test_a_rank_that_a_signal_stopped_is_odd_though_its_stack_is_equal(cluster, code):
    with training(cluster, code, "all_reduce", "all_reduce") as job:
        found = soon(cluster, job, lambda found: waiting(found) == 8)
        pid = next(one.pid for one in found.ranks if one.rank == "5")
        os.kill(pid, signal.SIGSTOP)
        found = stacks.take(cluster, job.id)
        os.kill(pid, signal.SIGCONT)
    assert [(who, does) for who, does, _ in places(found)] == [
        ("rank 5", "is stopped by a signal"),
        ("ranks 0-4, 6-7", "waits"),
    ]


def test_without_py_spy_it_is_what_the_kernel_says(cluster, code, monkeypatch):
    (Path(cluster.shared) / ".phalanx/tools" / f"py-spy-{tracer.VERSION}-{os.uname().machine}").write_text("#!/bin/sh")
    change_runner(
        monkeypatch,
        ("runner/environments/tracer_wheel.py", "^    if os.uname.*$", '    raise OSError("no index")\n    if False:'),
    )
    with training(cluster, code, "all_reduce", "all_reduce") as job:
        found = soon(cluster, job, lambda found: len(found.ranks) == 8 and all(one.wchan for one in found.ranks))
    (group,) = found.groups()
    assert (group[0].does, group[0].frames) == ("waits", ())
    assert group[0].why == f"no index; {tracer.MISSING}"


def test_a_program_that_is_not_python_and_a_script_that_starts_python(cluster, code):
    (code / "start.sh").write_text("[ $RANK = 1 ] && exec sleep 1000\npython -c 'import time; time.sleep(1000)'\n")
    job = submit(cluster, JobSpec(("sh", "start.sh"), "exec", processes=2, directory=code), detach=True)
    try:
        found = soon(cluster, job, lambda found: len(found.ranks) == 2 and any(one.frames for one in found.ranks))
    finally:
        job.stop()
    assert [(one.rank, one.name, one.place) for one in found.ranks] == [
        ("0", "python", "<module> (<string>:1)"),
        ("1", "sleep", found.ranks[1].wchan),
    ]
    assert "not a Python process" in found.ranks[1].why


def test_one_rank_and_none(cluster, code):
    with training(cluster, code, "save", "leave") as job:
        soon(cluster, job, lambda found: waiting(found) == 6 and found.ended != ())
        assert [one.rank for one in stacks.take(cluster, job.id, "1").ranks] == ["1"]
        assert stacks.take(cluster, job.id, "6").ended == ("6",)
        with raises_code("no-process", "'9'"):
            stacks.take(cluster, job.id, "9")
    with raises_code("not-running", job.id):
        stacks.take(cluster, job.id)


def test_while_the_shared_directory_does_not_answer_it_needs_only_the_runner_s_socket(cluster, code, monkeypatch):
    def is_silent(*_: object) -> Job:
        raise SharedSilent("the shared directory does not answer")

    with training(cluster, code, "save", "all_reduce") as job:
        soon(cluster, job, lambda found: waiting(found) == 7)
        monkeypatch.setattr(stacks, "open_job", is_silent)
        found = stacks.take(cluster, job.id[-6:])
    assert places(found)[0] == ("rank 1", "waits", "save (train.py:16)")
    with raises_code("not-running", "does not answer"):
        stacks.take(cluster, job.id[-6:])
