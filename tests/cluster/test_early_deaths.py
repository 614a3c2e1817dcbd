"""The runner, or the whole head, dies before a job has started its first rank: the job is lost, or starts again."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benchmarks import slow_package
from local_clouds import break_on_purpose
from terminals import Terminal, a_cluster

pytestmark = pytest.mark.cluster

SPEC = "name: early\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nshared: /efs\nkeep: no\n"
# A package whose build waits for a signal, so that pip is in the middle of its work.
LET_GO = "/efs/.let-go"
BUILDING = "build_wheel"
# For each wait, on a busy machine.
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """Two nodes with that package on the shared directory; tests may kill the head."""
    package = tmp_path_factory.mktemp("package") / "slow"
    slow_package.write(package, f"not os.path.exists({LET_GO!r})")
    with a_cluster(SPEC) as terminal:
        terminal.phalanx("put", str(package))
        yield terminal


def begin(terminal: Terminal, code: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    """Start a job in the foreground, with an environment of its own; return it and its id once pip builds."""
    terminal.on("head", f"rm -f {LET_GO}")
    (code / "requirements.txt").write_text(f"--no-index\n/efs/slow\n# {code}\n")
    arguments = ("--directory", str(code), "--launcher", "exec", "-n", "1", *options)
    following = terminal.start("run", *arguments, "--", "echo", "begun")
    wait_for(lambda: BUILDING in processes(terminal))
    return following, newest(terminal)["id"]


def wait_for(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.5)


def processes(terminal: Terminal) -> str:
    """Return the command lines of all processes on the head."""
    return terminal.on("head", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '", check=False)


def newest(terminal: Terminal) -> dict:
    return json.loads(terminal.phalanx("jobs", "--json").stdout)[0]


def kill_runner(terminal: Terminal, job_id: str, watcher: bool = False) -> None:
    """Kill a job's runner; with `watcher` also its parent, which would settle the job."""
    state = f"/efs/.phalanx/jobs/{job_id}/state.json"
    pid = f'$(python3 -c \'import json; print(json.load(open("{state}"))["runner"]["pid"])\')'
    parent = "$(ps -o ppid= -p $pid)" if watcher else ""
    terminal.on("head", f"pid={pid}; kill -9 {parent} $pid")


def kill_head(terminal: Terminal) -> None:
    head = json.loads(terminal.phalanx("nodes", "--json").stdout)[0]["instance_id"]
    break_on_purpose(terminal, kill={"instance_id": head})


def end(following: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = following.communicate(timeout=PATIENCE_S)
    return following.returncode, output


def test_a_runner_killed_while_pip_works_leaves_a_job_that_is_lost(terminal: Terminal, tmp_path: Path) -> None:
    following, job_id = begin(terminal, tmp_path)
    kill_runner(terminal, job_id)
    code, output = end(following)
    assert code == 1 and "lost: the job's runner died" in output, output
    assert newest(terminal)["state"] == "lost"
    assert BUILDING not in processes(terminal)


def test_a_job_that_may_restart_starts_again_when_its_runner_died_early(terminal: Terminal, tmp_path: Path) -> None:
    following, job_id = begin(terminal, tmp_path, "--restarts", "1")
    kill_runner(terminal, job_id)
    terminal.on("head", f"touch {LET_GO}")
    code, output = end(following)
    assert code == 0 and "restart 1 of 1: the job's runner died" in output and "[0] begun" in output, output


def test_a_stop_ends_a_job_whose_runner_died_early_and_that_nobody_settled(terminal: Terminal, tmp_path: Path) -> None:
    following, job_id = begin(terminal, tmp_path, "--restarts", "1")
    following.kill()
    following.communicate()
    kill_runner(terminal, job_id, watcher=True)
    stopped = terminal.phalanx("stop", job_id, check=False)
    assert (stopped.returncode, "stopped: stopped on request" in stopped.stderr) == (0, True), stopped.stderr
    assert newest(terminal)["state"] == "stopped"
    assert BUILDING not in processes(terminal)


@pytest.mark.parametrize(("restarts", "ends_as"), [("0", "lost"), ("1", "succeeded")])
def test_a_head_that_died_while_pip_worked_has_its_jobs_settled_by_the_next(
    terminal: Terminal, tmp_path: Path, restarts: str, ends_as: str
) -> None:
    following, job_id = begin(terminal, tmp_path, "--restarts", restarts)
    kill_head(terminal)
    # From this machine, for there is no head: the build of a restarted job need not wait.
    (next((terminal.state / "local" / "efs").glob("fs-*/")) / Path(LET_GO).name).touch()
    _, output = end(following)
    assert "The job goes on without it" not in output, output
    wait_for(lambda: terminal.phalanx("jobs", check=False).returncode == 0)
    wait_for(lambda: newest(terminal)["ended_at"])
    job = newest(terminal)
    assert (job["id"], job["state"]) == (job_id, ends_as), job
