"""Jobs through a real Slurm and a real Grid Engine, from Debian's packages, on three separate nodes."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from terminals import Terminal, a_cluster
from verdicts import is_proven

pytestmark = pytest.mark.cluster

PACKAGES = (Path(sys.prefix) / "schedulers").resolve()
NODES = [f"deeplearning-worker{number}" for number in (1, 2, 3)]
SAY = 'echo "$OMPI_COMM_WORLD_RANK $(hostname) job=$SLURM_JOB_ID$JOB_ID hidden=$SLURM_NODELIST$PE_HOSTFILE"'
SLEEPS = ("--launcher", "exec", "--restarts", "1", "--", "sleep", "1000")
SAY_GPUS = SAY[:-1] + ' gpus=$CUDA_VISIBLE_DEVICES"'


@pytest.fixture(scope="module")
def lab() -> Iterator[Terminal]:
    assert (PACKAGES / ".complete").exists(), "scripts/schedulers unpacks what is missing here; `make test` calls it"
    with a_cluster("name: lab\ncloud: local\nnodes: 3\nmin: 3\nslots: 2\nshared: /efs\n") as terminal:
        terminal.phalanx("put", str(Path(__file__).parent / "schedulers"))
        commands = [f"python3 /efs/schedulers/{name}_node.py {shlex.quote(str(PACKAGES))}" for name in ("slurm", "sge")]
        terminal.phalanx("exec", "--sudo", "--", " && ".join(commands))
        until(lambda: terminal.on("head", "sinfo -h -t idle -o %D").strip() == "3", "Slurm's nodes are idle")
        until(lambda: sge(terminal, "qhost").count("lx-amd64") == 3, "Grid Engine's nodes report")
        yield terminal


def until(is_so: Callable[[], bool], what: str, timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(1)  # each poll takes a fifth of a second of CPU time


def sge(lab: Terminal, command: str) -> str:
    return lab.on("head", f"sh -lc {shlex.quote(command)}", check=False)


def run(lab: Terminal, *arguments: str):
    return lab.phalanx("run", "--directory", str(code(lab)), *arguments, check=False)


def start(lab: Terminal, *arguments: str) -> str:
    return lab.phalanx("run", "--detach", "--directory", str(code(lab)), *arguments).stdout.strip()


def code(lab: Terminal) -> Path:
    directory = lab.directory / "code"
    directory.mkdir(exist_ok=True)
    return directory


def status(lab: Terminal, job: str) -> dict:
    return next(one for one in json.loads(lab.phalanx("jobs", "--json").stdout) if one["id"] == job)


def has_ended(lab: Terminal, job: str) -> bool:
    return status(lab, job)["state"] not in ("pending", "running")


def assert_nothing_is_left(lab: Terminal, job: str) -> None:
    found = status(lab, job)
    assert len(found["nodes"]) == 3, found
    assert all(node["clean"] for node in found["nodes"]), found
    look = shlex.quote(f"grep -lz ^PHALANX_JOB={job}$ /proc/[0-9]*/environ 2>/dev/null")
    assert "".join(lab.on("head", f"ssh {node} {look}", check=False) for node in NODES) == ""


def assert_ended_at_its_limit(lab: Terminal, job: str, scheduler: str, message: str) -> None:
    lab.phalanx("logs", "-f", job, check=False)
    found = status(lab, job)
    assert (found["state"], found["attempt"]) == ("failed", 0), found
    assert f"{scheduler} ended" in found["message"] and message in found["message"], found["message"]
    assert_nothing_is_left(lab, job)


def test_slurm_grants_nodes_without_the_head_and_mpiexec_runs_there(lab):
    head = lab.on("head", "hostname").strip()
    # Another job has one of the two GPUs of each node.
    lab.on("head", f"sbatch -N 2 -n 2 --exclude {head} --gres=gpu:1 --output=/dev/null --wrap 'sleep 1000'")
    until(lambda: lab.on("head", "squeue -h -t R -o %i") != "", "the other job runs")
    asked = ("--via", "slurm", "--via-option", f"--exclude {head} --gpus-per-task=1", "-n", "2")
    done = run(lab, *asked, "--", "sh", "-c", SAY_GPUS)
    lab.on("head", "scancel --user=$(id -un)")
    assert done.returncode == 0, done.stderr
    lines = sorted(line.split()[1:] for line in done.stdout.splitlines())
    assert [line[0] for line in lines] == ["0", "1"]
    assert [line[4] for line in lines] == ["gpus=1", "gpus=1"], lines
    assert head not in done.stdout
    assert all(line[2].startswith("job=") and line[2] != "job=" and line[3] == "hidden=" for line in lines), lines
    # The second state may have replaced the first between two polls.
    assert re.search(r"(queued in|granted by) slurm as \d+", done.stderr)
    until(lambda: lab.on("head", "squeue -h") == "", "no job is left")


def test_what_ranks_do_that_slurm_started(lab):
    script = "import time, os; rank = os.environ['RANK']; time.sleep(1000)"
    job = start(lab, "--via", "slurm", "--launcher", "exec", "-n", "2", "--", "python3", "-c", script)
    until(lambda: status(lab, job)["state"] == "running", "the job runs")
    until(lambda: "ranks 0-1 wait in <module>" in lab.phalanx("stacks", job).stdout, "both ranks sleep")
    lab.phalanx("stop", job, check=False)


def test_a_job_that_is_preempted_asks_again_and_one_that_scancel_ends_leaves_nothing(lab):
    job = start(lab, "--via", "slurm", "--launcher", "exec", "--restarts", "2", "--", "sleep", "1000")
    until(lambda: status(lab, job)["state"] == "running", "the job runs")
    lab.on("head", "sbatch --partition=urgent -n 6 --output=/dev/null --wrap true")
    until(lambda: status(lab, job)["attempt"] == 1 and status(lab, job)["state"] == "running", "it runs again")
    lab.on("head", "scancel --user=$(id -un)")
    until(lambda: has_ended(lab, job), "the job has ended")
    found = status(lab, job)
    assert found["state"] == "failed"
    assert "slurm ended" in found["message"] and "CANCELLED" in found["message"], found["message"]
    assert_nothing_is_left(lab, job)


def test_slurms_time_limit_ends_the_job_for_good_and_leaves_nothing(lab):
    job = start(lab, "--via", "slurm", "--via-option", "--time=1", *SLEEPS)
    until(lambda: status(lab, job)["state"] == "running", "the job runs")
    # A minute is the shortest limit; Slurm's configuration may extend it.
    over = "scontrol update JobId=$(squeue -h -o %i) EndTime=now+1"
    lab.phalanx("exec", "--sudo", "--node", "head", "--", over)
    assert_ended_at_its_limit(lab, job, "slurm", "TIMEOUT")


def test_a_job_waits_in_the_queue_and_can_be_stopped_there(lab):
    lab.on("head", "sbatch --parsable -n 6 --output=/dev/null --wrap 'sleep 1000'")
    until(lambda: lab.on("head", "squeue -h -t R -o %i") != "", "the other job runs")
    job = start(lab, "--via", "slurm", "--launcher", "exec", "--", "true")
    until(lambda: "(" in status(lab, job)["message"], "Slurm reports its reason")
    assert status(lab, job)["message"].startswith("queued in slurm as")
    lab.phalanx("stop", job, check=False)
    found = status(lab, job)
    assert found["state"] == "stopped" and "queued in slurm" in found["message"]
    assert "phalanx" not in lab.on("head", "squeue -h -o %j")
    lab.on("head", "scancel --user=$(id -un)")
    until(lambda: lab.on("head", "squeue -h") == "", "the other job has gone")


def test_the_allocation_ends_with_the_runner(lab):
    job = start(lab, "--via", "slurm", "--launcher", "exec", "--", "sleep", "1000")
    until(lambda: status(lab, job)["state"] == "running", "the job runs")
    pid = json.loads(lab.on("head", f"cat /efs/.phalanx/jobs/{job}/state.json"))["runner"]["pid"]
    lab.on("head", f"kill -9 {pid}")
    until(lambda: has_ended(lab, job), "somebody found out")
    assert status(lab, job)["state"] == "lost"
    until(lambda: lab.on("head", "squeue -h") == "", "the allocation is free")
    assert_nothing_is_left(lab, job)


def test_what_slurm_refuses_is_reported_with_its_message(lab):
    done = run(lab, "--via", "slurm", "--via-option", "--partition nosuch", "-n", "2", "--", "true")
    assert done.returncode == 2
    assert "invalid partition specified: nosuch" in done.stderr


def test_grid_engine_grants_hosts_and_mpiexec_runs_there(lab):
    done = run(lab, "--via", "sge", "-n", "4", "--", "sh", "-c", SAY)
    assert done.returncode == 0, done.stderr
    lines = sorted(line.split()[1:] for line in done.stdout.splitlines())
    assert [line[0] for line in lines] == ["0", "1", "2", "3"]
    assert len({line[1] for line in lines}) == 3, "a round robin uses all hosts"
    assert all(line[2] != "job=" and line[3] == "hidden=" for line in lines), lines


@pytest.mark.parametrize("scheduler", ["slurm", "sge"])
def test_a_job_has_a_home_of_its_own_that_is_gone_afterwards(lab, scheduler):
    say = 'echo "home=$HOME $(ls -A ~ | wc -l)"; echo "exit 1" > ~/.bash_profile; touch ~/left'
    homes = []
    for _ in range(2):
        done = run(lab, "--launcher", "mpi", "--via", scheduler, "-N", "1", "-n", "3", "--", "sh", "-c", say)
        assert done.returncode == 0, done.stderr
        homes.append(set(re.findall(r"home=(\S+) (\d+)", done.stdout)))
    # Each job has one name for it on all nodes, and finds nothing there.
    assert [len(found) for found in homes] == [1, 1] and homes[0] != homes[1], homes
    paths = [path for found in homes for path, _ in found]
    assert {number for found in homes for _, number in found} == {"0"}
    account = lab.on("head", "echo $HOME").strip()
    assert account not in paths
    look = f"ls -d {' '.join(paths)} {account}/left 2>/dev/null; true"
    assert "".join(lab.on("head", f"ssh {node} {shlex.quote(look)}", check=False) for node in NODES) == ""


@pytest.mark.parametrize(
    ("scheduler", "ask", "limit"),
    [
        ("slurm", "scontrol show job $SLURM_JOB_ID | grep -o TimeLimit=[0-9:]*", "TimeLimit=01:04:00"),
        ("sge", "qstat -j $JOB_ID | grep -o h_rt=[0-9]*", "h_rt=3790"),
    ],
)
def test_the_scheduler_hears_of_the_time_limit(lab, scheduler, ask, limit):
    done = run(lab, "--via", scheduler, "--launcher", "exec", "-n", "1", "--time", "1h", "--", "sh", "-lc", ask)
    assert limit in done.stdout, done.stdout + done.stderr


def test_a_job_that_qdel_ends_says_so_and_leaves_nothing(lab):
    job = start(lab, "--via", "sge", "--launcher", "exec", "--", "sleep", "1000")
    until(lambda: status(lab, job)["state"] == "running", "the job runs")
    sge(lab, "qdel -u $(id -un)")
    until(lambda: has_ended(lab, job), "the job has ended")
    assert "sge ended" in status(lab, job)["message"]
    assert_nothing_is_left(lab, job)


def test_grid_engines_time_limit_ends_the_job_for_good_and_leaves_nothing(lab):
    job = start(lab, "--via", "sge", "--via-option", "-l h_rt=15", *SLEEPS)
    assert_ended_at_its_limit(lab, job, "sge", "h_rt")


def test_launch_asks_grid_engine_for_the_places_of_all_roles(lab):
    part = 'echo "$DMLC_ROLE $DMLC_TASK_ID of $DMLC_NUM_WORKER job=$JOB_ID"; [ $DMLC_ROLE = worker ] || exec sleep 1000'
    done = lab.phalanx("launch", "-n", "2", "-s", "1", "--launcher", "sge", "sh", "-c", part)
    lines = sorted(line for line in done.stdout.splitlines() if "[worker" in line)
    assert [line.partition(" job=")[0] for line in lines] == [f"[worker {n}] worker {n} of 2" for n in (0, 1)]
    assert all(line.partition(" job=")[2] for line in lines), lines
    assert is_proven(done.stderr)


def test_what_grid_engine_refuses_is_reported_with_its_message(lab):
    done = run(lab, "--via", "sge", "--via-option", "-q nosuch", "-n", "2", "--", "true")
    assert done.returncode == 2
    assert 'unknown queue "nosuch"' in done.stderr
