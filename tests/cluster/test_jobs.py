"""Jobs on four real nodes: every launcher and every kind of end, and nothing left after any of them."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from terminals import PHALANX, Terminal, read_until
from verdicts import is_proven

from phalanx.runner.files import ring

pytestmark = pytest.mark.cluster

NODES = [f"deeplearning-worker{number}" for number in range(1, 5)]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return tmp_path


def run(cluster: Terminal, code: Path, *arguments: str, launcher: str = "exec", options: tuple[str, ...] = ()):
    return cluster.phalanx(
        "run", "--directory", str(code), "--launcher", launcher, *options, "--", *arguments, check=False
    )


def newest(cluster: Terminal) -> dict:
    return json.loads(cluster.phalanx("jobs", "--json").stdout)[0]


def processes_of(cluster: Terminal, job_id: str) -> str:
    """Return the processes with the job's mark on all nodes."""
    look = shlex.quote(f"grep -lz ^PHALANX_JOB={job_id}$ /proc/[0-9]*/environ 2>/dev/null")
    return "".join(cluster.on("head", f"ssh {node} {look}", check=False) for node in NODES)


def start(cluster: Terminal, code: Path, *arguments: str, launcher: str = "exec", options: tuple[str, ...] = ()) -> str:
    """Start a detached job and wait for the first output of each of its ranks; return its id."""
    job_id = cluster.phalanx(
        "run", "--detach", "--directory", str(code), "--launcher", launcher, *options, "--", *arguments
    ).stdout.strip()
    cluster.wait_until_printed(job_id, "ready", times=4 if launcher == "exec" or options else 8)
    return job_id


def follow(cluster: Terminal, job_id: str) -> subprocess.CompletedProcess[str]:
    return cluster.phalanx("logs", "-f", job_id, check=False)


def test_the_load_of_a_job_is_shown_while_it_runs_and_summed_up_at_its_end(cluster, code):
    job = start(cluster, code, "sh", "-c", "echo ready; sleep 4711")
    seen: list[dict] = []
    deadline = time.monotonic() + 60
    while {node["node"] for node in seen} != set(NODES) and time.monotonic() < deadline:
        seen = json.loads(cluster.phalanx("top", job, "--json").stdout)
    assert {node["node"] for node in seen} == set(NODES)
    assert all(node["processes"] >= 2 and node["node_memory_total"] > 0 for node in seen), seen
    assert cluster.phalanx("top", job).stdout.count(job) == 4
    assert " cores, " in json.loads(cluster.phalanx("status", "--json").stdout)["load"]
    stopped = cluster.phalanx("stop", job).stderr
    assert "memory: at most " in stopped and is_proven(stopped, 4)
    assert newest(cluster)["killed"] == 0
    assert job not in cluster.phalanx("top", "--json").stdout
    cluster.phalanx("get", f"/efs/.phalanx/jobs/{job}/load", str(code / "load"))
    fine, _ = ring.read(str(code / "load" / f"{NODES[3]}.ring"))
    assert fine and fine[-1][1].node_memory_total > 0


def test_every_node_runs_one_as_the_job_user_in_the_copy(cluster, code):
    (code / "who.sh").write_text(
        "echo $(id -un) $PWD/$(ls) $RANK/$WORLD_SIZE $MASTER_ADDR $DEEPLEARNING_WORKERS_COUNT\n"
    )
    done = run(cluster, code, "sh", "who.sh")
    work = f"/efs/.phalanx/jobs/{newest(cluster)['id']}/work/who.sh"
    expected = {f"[{rank}] phalanx {work} {rank}/4 deeplearning-worker1 4" for rank in range(4)}
    assert set(done.stdout.splitlines()) == expected
    assert is_proven(done.stderr, 4)


def test_mpi_ranks_meet_and_keep_their_output_apart(cluster, code):
    (code / "meet.py").write_text(
        "from mpi4py import MPI\nc = MPI.COMM_WORLD\n"
        "print(c.Get_rank(), c.allreduce(1), '\\n'.join(f'{c.Get_rank()}.{i}' for i in range(5000)))\n"
    )
    done = run(cluster, code, "python", "meet.py", launcher="mpi")
    for rank in range(8):
        lines = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        assert lines == [f"{rank} 8 {rank}.0", *(f"{rank}.{number}" for number in range(1, 5000))]


def test_mpi_words_are_passed_as_they_are_and_what_does_not_fit_is_no_job(cluster, code):
    (code / "arguments.py").write_text("import sys\nprint(sys.argv[1:])\n")
    arguments = ["a", ":", "b c", ""]
    done = run(cluster, code, "python", "arguments.py", *arguments, launcher="mpi", options=("-N", "1"))
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] {arguments}" for rank in range(4)]
    before = newest(cluster)["id"]
    reported = [
        run(cluster, code, "true", options=("-n", "1000", *more)) for more in ((), ("--detach",), ("--dry-run",))
    ]
    assert [(one.returncode, one.stderr) for one in reported] == [(7, reported[0].stderr)] * 3
    assert "1000 processes" in reported[0].stderr and "room for 8." in reported[0].stderr
    assert newest(cluster)["id"] == before


def test_a_large_directory_is_sent_in_parts_and_each_job_has_its_own_copy(cluster, code):
    (code / ".gitignore").write_text("secret*\n")
    (code / "secret.txt").write_text("stays here\n")
    for name in ("one", "two"):
        (code / name).write_bytes(os.urandom(2 << 20))
    digest = hashlib.sha256((code / "one").read_bytes()).hexdigest()
    script = "echo $(ls) $(sha256sum < one); ls /efs/.phalanx/code/objects | wc -l; echo more >> one"
    first = run(cluster, code, "sh", "-c", script, options=("-n", "1"))
    (code / "two").write_bytes(os.urandom(2 << 20))
    second = run(cluster, code, "sh", "-c", script, options=("-n", "1"))
    names, count = first.stdout.splitlines()
    assert names == f"[0] one two {digest} -"
    assert second.stdout.splitlines() == [names, f"[0] {int(count.split()[1]) + 1}"]


def test_torchrun_takes_a_module_and_reports_a_missing_package_once(cluster, code):
    (code / "train.py").write_text("import os\nprint(__name__, os.environ['RANK'], os.environ['PWD'] == os.getcwd())\n")
    done = run(cluster, code, "-m", "train", launcher="torchrun", options=("-n", "1"))
    assert done.stdout == "[0] __main__ 0 True\n"
    (code / "train.py").write_text("import nosuch\n")
    done = run(cluster, code, "-m", "train", launcher="torchrun", options=("-n", "2", "-N", "1"))
    assert done.stderr.count("no module named 'nosuch'") == 1
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize(
    ("launcher", "variable"), [("mpi", "OMPI_COMM_WORLD_RANK"), ("exec", "RANK"), ("torchrun", "RANK")]
)
def test_the_first_failure_ends_the_job_with_its_code_and_its_message(cluster, code, launcher, variable):
    (code / "fail.py").write_text(
        f"import os, sys, time\nif os.environ['{variable}'] != '2': time.sleep(4711)\n"
        "print('about to fail')\nsys.exit(7)\n"
    )
    done = run(cluster, code, "python", "fail.py", launcher=launcher, options=("-n", "4", "-N", "2"))
    assert done.returncode == 7
    assert "rank 2 on deeplearning-worker2" in done.stderr
    assert "| about to fail" in done.stderr
    assert is_proven(done.stderr)
    assert processes_of(cluster, newest(cluster)["id"]) == ""


def test_jobs_share_connections_and_a_broken_one_ends_its_users_but_no_later_job(cluster, code):
    def connections() -> list[str]:
        return sorted(run(cluster, code, "sh", "-c", "echo $SSH_CONNECTION", options=("-N", "1")).stdout.splitlines())

    before = connections()
    assert connections() == before
    job_id = start(cluster, code, "sh", "-c", "echo ready; exec sleep 300")
    cluster.on("head", "pkill -KILL -f '^ssh: /tmp/phalanx-lines.*mux'")
    done = follow(cluster, job_id)
    assert "was lost" in done.stderr
    assert is_proven(done.stderr, 4)
    assert processes_of(cluster, job_id) == ""
    after = connections()
    assert [one == other for one, other in zip(before, after, strict=True)].count(True) == 1  # the head has none


def test_mpi_abort_gives_the_job_its_code(cluster, code):
    (code / "abort.py").write_text(
        "from mpi4py import MPI\nimport time\nif MPI.COMM_WORLD.Get_rank() == 3: MPI.COMM_WORLD.Abort(4)\n"
        "time.sleep(4711)\n"
    )
    done = run(cluster, code, "python", "abort.py", launcher="mpi")
    assert done.returncode == 4
    assert "MPI_ABORT was invoked on rank 3" in done.stderr


def test_a_command_that_one_node_lacks_is_reported_before_any_rank_starts(cluster, code):
    cluster.on(
        "head", "mkdir -p /tmp/own && printf '#!/bin/sh\\necho began\\n' > /tmp/own/tool && chmod +x /tmp/own/tool"
    )
    done = run(cluster, code, "/tmp/own/tool", launcher="mpi")
    assert done.returncode == 127
    assert f"command '/tmp/own/tool' is not on {', '.join(NODES[1:])}" in done.stderr
    assert "began" not in done.stdout
    assert "had to be killed" not in done.stderr


TRAIN = """\
import time

if True:
    import torch.distributed

torch.distributed.init_process_group("gloo")
total = torch.ones(1)
torch.distributed.all_reduce(total)
print("sum", int(total))
time.sleep(1)  # examples/fashion_mnist/train.py tells why
torch.distributed.destroy_process_group()
"""


def test_a_script_that_needs_torchrun_gets_it(cluster, code):
    """As `up` says: `phalanx run -- python train.py`."""
    (code / "train.py").write_text(TRAIN)
    done = cluster.phalanx("run", "--directory", str(code), "-n", "2", "-N", "2", "--", "python", "train.py")
    assert sorted(done.stdout.splitlines()) == ["[0] sum 2", "[1] sum 2"]
    assert "launcher torchrun, because train.py uses torch.distributed" in done.stderr


@pytest.mark.parametrize("launcher", ["exec", "mpi"])
def test_stop_leaves_no_process_on_any_node(cluster, code, launcher):
    (code / "long.sh").write_text("(setsid env -i sleep 4711 &)\necho ready\nsleep 4711\n")
    job_id = start(cluster, code, "sh", "long.sh", launcher=launcher)
    assert processes_of(cluster, job_id) != ""
    done = cluster.phalanx("stop", job_id)
    assert is_proven(done.stderr, 4)
    assert processes_of(cluster, job_id) == ""
    assert "sleep 4711" not in "".join(cluster.on("head", f"ssh {node} ps -eo args=") for node in NODES)


SAVE = """
import os, signal, sys, time
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["RANK"]

def save(*_):
    time.sleep(float(sys.argv[1]))
    print("saved", flush=True)
    sys.exit()

if rank == "0":
    signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
if sys.argv[2:] == ["fail"] and rank == "1":
    time.sleep(2)
    sys.exit(3)
time.sleep(4711)
"""


@pytest.mark.parametrize("launcher", ["exec", "mpi"])
@pytest.mark.parametrize(("needs_s", "grace", "saved"), [(3, "5s", 1), (7, "30s", 1), (30, "1s", 0)])
def test_a_rank_can_save_as_long_as_the_grace_is_though_others_end_at_once(
    cluster, code, launcher, needs_s, grace, saved
):
    (code / "save.py").write_text(SAVE)
    job_id = start(
        cluster, code, "python3", "save.py", str(needs_s), launcher=launcher, options=("-N", "1", "--grace", grace)
    )
    assert "no process of it is left on 4 nodes" in cluster.phalanx("stop", job_id).stderr
    assert cluster.phalanx("logs", job_id).stdout.count("saved") == saved


@pytest.mark.parametrize("launcher", ["exec", "mpi"])
def test_a_rank_can_save_when_another_one_fails(cluster, code, launcher):
    (code / "save.py").write_text(SAVE)
    done = run(cluster, code, "python3", "save.py", "3", "fail", launcher=launcher, options=("-N", "1"))
    assert (done.returncode, done.stdout.count("saved")) == (3, 1)
    assert "rank 1 on deeplearning-worker2 ended with exit code 3" in done.stderr


def test_processes_that_detached_completely_are_ended_after_success(cluster, code):
    leaves = "(setsid env -i sh -c 'touch /tmp/left; sleep 4711 & sleep 4711' &)"
    (code / "leave.sh").write_text(f"rm -f /tmp/left\n{leaves}\nuntil [ -e /tmp/left ]; do sleep 0.1; done\n")
    done = run(cluster, code, "sh", "leave.sh")
    assert done.returncode == 0
    assert "had to be killed" in done.stderr
    assert "sleep 4711" not in "".join(cluster.on("head", f"ssh {node} ps -eo args=") for node in NODES)


def test_what_logged_in_to_a_node_that_the_job_does_not_use_is_ended_too(cluster, code):
    (code / "away.sh").write_text("ssh deeplearning-worker3 'setsid sleep 4712 >/dev/null 2>&1 </dev/null &'\n")
    done = run(cluster, code, "sh", "away.sh", options=("-n", "1"))
    assert done.returncode == 0
    assert is_proven(done.stderr, 4)
    assert "sleep 4712" not in cluster.on("deeplearning-worker3", "ps -eo args=")


def test_another_job_and_the_users_own_process_live_on(cluster, code):
    cluster.on("head", "nohup sleep 4711 >/dev/null 2>&1 & echo $! > /tmp/users.pid")
    other = start(cluster, code, "sh", "-c", "echo ready; sleep 4711")
    mine = start(cluster, code, "sh", "-c", "echo ready; sleep 4711")
    cluster.phalanx("stop", mine)
    assert len(processes_of(cluster, other).split()) >= 4
    cluster.on("head", "kill $(cat /tmp/users.pid)")
    cluster.phalanx("stop", other)


def test_a_dead_rank_is_noticed_and_named(cluster, code):
    job_id = start(cluster, code, "sh", "-c", "echo ready; exec sleep 4711")
    cluster.on("deeplearning-worker3", "until pkill -KILL -f ^sleep.4711; do sleep 0.1; done")
    done = follow(cluster, job_id)
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 2 on deeplearning-worker3 was ended by SIGKILL" in done.stderr


@pytest.mark.parametrize("victim", ["submit", "starter"])
def test_runner_or_starter_killed_leaves_nothing(cluster, code, victim):
    job_id = start(cluster, code, "sh", "-c", "echo ready; sleep 4711", launcher="mpi")
    node = "head" if victim == "submit" else "deeplearning-worker2"
    cluster.on(node, f"pkill -KILL -f 'runner.pyz {victim} .*{job_id}'", check=False)
    done = follow(cluster, job_id)
    assert done.returncode == 1
    assert (
        "the job's runner died" in done.stderr if victim == "submit" else "deeplearning-worker2 was lost" in done.stderr
    )
    assert is_proven(done.stderr, 4)
    assert processes_of(cluster, job_id) == ""


def test_a_killed_command_line_changes_nothing_for_the_job(cluster, code):
    arguments = [
        "run",
        "--directory",
        str(code),
        "--launcher",
        "exec",
        "--",
        "sh",
        "-c",
        "echo ready; sleep 2; echo done",
    ]
    typed = subprocess.Popen(
        [str(PHALANX), *arguments],
        cwd=cluster.directory,
        env={"PHALANX_STATE_DIR": str(cluster.state), "PATH": "/usr/bin:/bin", "HOME": "/tmp"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert typed.stdout
    typed.stdout.readline()
    typed.kill()
    typed.wait()
    typed.stdout.close()
    done = follow(cluster, newest(cluster)["id"])
    assert done.returncode == 0
    assert done.stdout.count("done") == 4


def test_a_command_line_that_is_asked_to_end_says_how_to_reach_the_job(cluster, code):
    with cluster.start(
        "run", "--directory", str(code), "--launcher", "exec", "--", "sh", "-c", "echo up; sleep 600"
    ) as run:
        read_until(run, "] up")
        assert run.stdout
        run.send_signal(signal.SIGTERM)
        shown = run.stdout.read()
    job = newest(cluster)
    assert (run.returncode, job["state"]) == (143, "running")
    assert f"job {job['id']} continues: `phalanx logs -f {job['id']}` follows it" in shown
    assert f"`phalanx stop {job['id']}` ends it" in shown
    cluster.phalanx("stop", job["id"])


def test_jobs_are_found_by_their_tags(cluster):
    tags = ("--tag", "model=resnet", "--tag", "lr=0.1")
    cluster.phalanx("run", *tags, "--launcher", "exec", "-n", "1", "--", "true")
    (found,) = json.loads(cluster.phalanx("jobs", "--tag", "lr=0.1", "--json").stdout)
    assert found["tags"] == {"model": "resnet", "lr": "0.1"}
    assert json.loads(cluster.phalanx("jobs", "--tag", "lr=0.2", "--json").stdout) == []
