"""Open MPI 5 and MPICH on a real cluster with the image's Open MPI 4: started, killed, and gone without a trace."""

from __future__ import annotations

import re
import shlex

import pytest
from terminals import EXAMPLES
from verdicts import is_proven

pytestmark = pytest.mark.cluster

FIRST_USE_S = 900
HELLO = """
import sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
print("rank", comm.rank, "of", comm.allreduce(1), MPI.Get_library_version().split()[0], sys.executable)
"""
DIE = """
import os, signal, sys, time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
# Who is still in the barrier would fail there, and might be heard first.
through = f"/efs/through-{os.environ['PHALANX_JOB']}-"
open(through + str(MPI.COMM_WORLD.rank), "w").close()
while not all(os.path.exists(through + str(rank)) for rank in range(MPI.COMM_WORLD.size)):
    time.sleep(0.1)
pid = os.getpid()
while sys.argv[1] != "rank" and open(f"/proc/{pid}/comm").read().strip() not in ("orted", "prted", "hydra_pmi_proxy"):
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
if MPI.COMM_WORLD.rank == 2:
    os.kill(pid, signal.SIGKILL)
time.sleep(4711)
"""
SAVE = """
import os, signal, sys, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank

def save(*_):
    for _ in range(15):
        time.sleep(0.2)
    print("saved", flush=True)
    os._exit(0)

if rank == 0:
    signal.signal(signal.SIGTERM, save)
MPI.COMM_WORLD.Barrier()
print("ready", flush=True)
if rank == 2 and sys.argv[1] == "fail":
    time.sleep(1)
    os._exit(3)
time.sleep(4711)
"""
WAIT = """
import time
from mpi4py import MPI

def barrier():
    print("ready", flush=True)
    MPI.COMM_WORLD.Barrier()

def load():
    print("ready", flush=True)
    time.sleep(4711)

(load if MPI.COMM_WORLD.rank == 2 else barrier)()
"""
THREADS = """
pid=$$
until grep -q ^prte /proc/$pid/comm || [ "$pid" = 1 ]; do pid=$(cut -d " " -f 4 /proc/$pid/stat); done
echo "$(cat /proc/$pid/comm) has $(ls /proc/$pid/task | wc -l) threads"
"""
LEFT = "ls -A /tmp /dev/shm | grep -E 'phalanx-[0-9]|ompi|prte|segment|mpich|hydra' || echo none"


@pytest.fixture(scope="module")
def programs(engines):
    (engines.directory / "hello.py").write_text(HELLO)
    (engines.directory / "die.py").write_text(DIE)
    (engines.directory / "save.py").write_text(SAVE)
    (engines.directory / "wait.py").write_text(WAIT)
    return engines


@pytest.mark.parametrize(("recipe", "library"), [("openmpi", "Open"), ("mpich", "MPICH")])
def test_every_engine_starts_ranks_on_all_nodes(programs, recipe, library):
    done = programs.phalanx("run", "--recipe", recipe, "-N", "1", "--", "python", "hello.py", timeout_s=FIRST_USE_S)
    assert sorted(re.findall(rf"\[(\d)\] rank \1 of 4 {library}", done.stdout)) == ["0", "1", "2", "3"]
    assert "setpgid" not in done.stdout + done.stderr
    assert is_proven(done.stderr, 4)


@pytest.mark.parametrize(
    ("what", "reported"), [("rank", "rank 2 on deeplearning-worker3"), ("daemon", "mpiexec@deeplearning-worker3")]
)
@pytest.mark.parametrize("recipe", [None, "openmpi", "mpich"])
def test_a_killed_process_is_named_and_nothing_is_left(programs, recipe, what, reported):
    own = ("--recipe", recipe) if recipe else ("--no-requirements",)
    arguments = ("run", *own, "-N", "1", "--", "python", "die.py", what)
    done = programs.phalanx(*arguments, timeout_s=FIRST_USE_S, check=False)
    assert done.returncode == 137
    assert f"{reported} was ended by SIGKILL" in done.stderr
    assert is_proven(done.stderr, 4)
    assert programs.on("deeplearning-worker3", LEFT).split() == ["none"]


@pytest.mark.parametrize("recipe", [None, "openmpi", "mpich"])
def test_a_rank_can_save_when_the_job_is_stopped_and_when_another_rank_fails(programs, recipe):
    """Each engine kills all ranks within a second once it knows that one has ended."""
    own = ("--recipe", recipe) if recipe else ("--no-requirements",)
    failed = programs.phalanx(
        "run", *own, "-N", "1", "--", "python", "save.py", "fail", timeout_s=FIRST_USE_S, check=False
    )
    assert (failed.returncode, failed.stdout.count("saved")) == (3, 1), failed
    job = programs.phalanx("run", *own, "-N", "1", "--detach", "--", "python", "save.py", "wait").stdout.strip()
    programs.wait_until_printed(job, "ready", times=4)
    assert "no process of it is left on 4 nodes" in programs.phalanx("stop", job).stderr
    assert programs.phalanx("logs", job).stdout.count("saved") == 1


@pytest.mark.parametrize("recipe", [None, "openmpi", "mpich"])
def test_the_rank_for_which_the_others_wait_is_named_with_its_line(programs, recipe):
    own = ("--recipe", recipe) if recipe else ("--no-requirements",)
    arguments = ("run", *own, "-N", "1", "--detach", "--", "python", "wait.py")
    job = programs.phalanx(*arguments, timeout_s=FIRST_USE_S).stdout.strip()
    programs.wait_until_printed(job, "ready", times=4)
    shown = programs.phalanx("stacks", job).stdout.splitlines()
    programs.phalanx("stop", job)
    assert shown[0] == "rank 2 waits in load (wait.py:11)"
    assert re.fullmatch(r"ranks 0-1, 3 (wait|run) in barrier \(wait.py:7\)", shown[1]), shown


def test_daemons_start_ranks_in_the_thread_that_reaps_them(programs):
    """With 16 threads for that, 6 of 76 short commands on busy nodes showed all of their output and never ended."""
    arguments = ("--recipe", "openmpi", "-N", "1", "--", "sh", "-c", THREADS)
    job = programs.phalanx("run", *arguments, timeout_s=FIRST_USE_S).stdout
    activate = ". /efs/.phalanx/environments/openmpi-*/bin/activate"
    typed = programs.on("head", f"{activate} && mpiexec -n 4 -N 1 sh -c {shlex.quote(THREADS)}")
    # The daemon's own thread, and PMIx's.
    assert re.findall(r"prte\w+ has \d+ threads", job + typed) == ["prted has 2 threads"] * 8


def test_typed_on_the_head_mpiexec_is_32_processes_of_the_environment_that_was_activated(programs):
    programs.phalanx("put", str(EXAMPLES / "chainermn_mnist"), "mnist")
    programs.phalanx("run", "--recipe", "chainermn", "-n", "1", "--", "true", timeout_s=FIRST_USE_S)
    programs.phalanx("put", "hello.py", "mnist/hello.py")
    activate = "cd /efs/mnist && . /efs/.phalanx/environments/chainermn-*/bin/activate && export OMP_NUM_THREADS=1"
    hello = "mpiexec -n 32 -N 8 -x OMP_NUM_THREADS python hello.py"
    # Only four, because 32 would spend half a minute importing Chainer.
    train = "mpiexec -n 4 -N 1 -x OMP_NUM_THREADS python train_mnist.py -e 1 -u 10 -b 1000"
    printed = programs.on("head", f"{activate} && {hello} && {train}", timeout_s=900)
    greeted = re.findall(r"^rank (\d+) of 32 Open \S+/environments/chainermn-\w+/bin/python$", printed, re.MULTILINE)
    assert sorted(map(int, greeted)) == list(range(32))
    assert "Num process (COMM_WORLD): 4" in printed
    assert re.search(r"^\S*1 +(?:\d\S+ +){5}$", printed, re.MULTILINE)
