"""The program as a process: its messages when its output or its start, or a process that it starts, fails."""

from __future__ import annotations

import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from benchmarks.measure import PHALANX
from fleet_fakes import until

from phalanx.cluster.cluster_record import Cluster
from phalanx.local import endpoint


def test_a_full_output_is_reported_in_one_line(tmp_path):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from phalanx.cli import main; main()", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=120,
        )
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 2)
    assert done.stderr.startswith(b"error: can't write: No space left on device")


STATUSES = {"--help": 0, "ls --json": 0, "plan": 0, "init": 2, "run -- true": 2, "nonsense": 2}


def in_a_shell(script, directory):
    """Run a shell's script, in which `$phalanx` is the program, in a new directory with a phalanx.yaml."""
    directory.mkdir()
    (directory / "phalanx.yaml").write_text("name: demo\ncloud: local\nnodes: 1\n")
    program = shlex.join([sys.executable, "-c", "from phalanx.cli import main; main()"])
    return subprocess.run(
        ["sh", "-c", script.replace("$phalanx", program)],
        cwd=directory,
        env={**os.environ, "PHALANX_STATE_DIR": str(directory.parent / "state")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_does_not_need_the_standard_files(tmp_path, closed):
    def run(number):
        (command, status), directory = list(STATUSES.items())[number], tmp_path / str(number)
        done = in_a_shell(f"$phalanx {command} {closed}", directory)
        assert (done.returncode, "Traceback" in done.stdout + done.stderr) == (status, False)
        assert bool(done.stdout) == (status == 0 and " >&-" not in f" {closed}")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(len(STATUSES))))


@pytest.mark.parametrize("command", ["init", "plan", "emr-scripts"])
def test_a_deleted_current_directory_is_named(tmp_path, command):
    done = in_a_shell(f'rm -r "$PWD"; $phalanx {command}', tmp_path / "project")
    assert done.returncode in (1, 2) and "unexpected" not in done.stderr
    assert "The current directory was deleted" in done.stderr


def test_a_plan_that_this_machine_has_no_room_for_names_the_limit_and_the_command(tmp_path):
    (tmp_path / "phalanx.yaml").write_text("name: demo\ncloud: local\nnodes: 200\nmin: 150\n")
    state = {"PHALANX_STATE_DIR": str(tmp_path / "state")}

    def plan(most_files: int) -> tuple[int, str]:
        limits = (most_files, most_files)
        done = subprocess.run(
            [PHALANX, "plan"],
            cwd=tmp_path,
            env={**os.environ, **state},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout + done.stderr

    status, said = plan(500)
    assert status != 0 and "at least 150" in said and "room for 145" in said
    assert "is 500: 64 in use" in said and "200 nodes take 600" in said
    assert "sudo prlimit --pid $$ --nofile=1024:1024" in said
    status, said = plan(600)
    assert status == 0 and "warning: this machine has room for 178 nodes: `ulimit -Hn`" in said


def test_the_module_is_the_program():
    done = subprocess.run([sys.executable, "-m", "phalanx", "up", "--help"], capture_output=True, timeout=120)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, b"Usage: phalanx up [OPTIONS]")


def test_any_directories_of_tests_can_be_named_together():
    paths = ("tests/cluster/test_smoke.py", "tests/fuzz")
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *paths]
    for order in (command, [*command[:-2], *reversed(paths)]):
        done = subprocess.run(order, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout


def test_ctrl_c_during_the_imports_shows_no_traceback(tmp_path):
    # Simulates a slow import, which is interrupted while phalanx.cli runs it.
    (tmp_path / "click.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    done = subprocess.run(
        [sys.executable, "-c", "from phalanx.cli import main"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("command", [["status"], ["nodes"], ["ssh"], ["jobs"], ["run", "--", "true"]])
def test_a_cluster_whose_local_cloud_is_gone_is_reported(phalanx, command, tmp_path):
    cluster = Cluster("demo", "local", "us-east-1", "arn", "54.0.0.1", "/efs").save()
    (cluster.directory / "ssh_config").write_text("Host *\n  HostName 127.0.0.1\n  Port 1\n")
    assert phalanx(*command) == 6
    assert "cluster demo is gone" in phalanx.err


def test_a_cluster_that_was_never_made_is_that_for_every_command(phalanx):
    Cluster("demo", "local", "us-east-1").save()
    assert phalanx("ls") == 0
    assert "never created" in phalanx.out
    assert phalanx("status") == 6
    phalanx.refused("never-created", "demo")


# Each command that logs in to the head.
WAIT_FOR_THE_HEAD = (
    ["jobs"],
    ["logs"],
    ["stop"],
    ["get", "result.txt"],
    ["put", "phalanx.yaml"],
    ["ssh"],
    ["ssh", "head", "--", "true"],
    ["run", "--", "true"],
    ["forward", "18811:8888"],
    ["recipes", "--remove-unused"],
    ["down"],
)


def test_a_command_says_that_it_waits_for_the_head_and_after_ctrl_c_it_can_be_given_again(phalanx, tmp_path):
    """The head accepts connections and then says nothing."""
    cluster = Cluster("demo", "local", "us-east-1", "arn", "54.0.0.1", "/efs").save()
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 2\n")
    with socket.create_server(("127.0.0.1", 0), backlog=50) as silent:
        port = silent.getsockname()[1]
        cluster.ssh_config.write_text(f"Host *\n  HostName 127.0.0.1\n  Port {port}\n")
        for commands in (WAIT_FOR_THE_HEAD, WAIT_FOR_THE_HEAD[:1]):
            # All at once: no command's own limit passes while another one is interrupted.
            with ThreadPoolExecutor(len(commands)) as pool:
                list(pool.map(lambda command: interrupt_what_waits(tmp_path, command), commands))
        # A process that was killed may take a moment to end.
        until(lambda: not processes_with(cluster.ssh_config), "every ssh to end")
    assert Cluster.load("demo") == cluster


def interrupt_what_waits(directory: Path, command: list[str]) -> None:
    process, terminal = start(directory, command)
    with process:
        assert process.stderr
        shown = process.stderr.readline()
        assert shown.startswith("waiting for deeplearning-worker1 to accept ssh ("), (command, shown)
        process.send_signal(signal.SIGINT)
        shown = process.communicate(timeout=120)[1]
        assert (process.returncode, shown) == (130, "interrupted\n"), command
    os.close(terminal)


def processes_with(argument: Path) -> list[Path]:
    """Return the directories in /proc of the processes whose command line contains the path."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if os.fsencode(argument) in (process / "cmdline").read_bytes():
                found.append(process)
    return found


def start(directory: Path, command: list[str]) -> tuple[subprocess.Popen[str], int]:
    """Start `phalanx …` with a terminal for its input and a pipe for its errors; return the terminal's end, too."""
    ours, theirs = os.openpty()
    process = subprocess.Popen([PHALANX, *command], cwd=directory, stdin=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    return process, ours


@pytest.mark.parametrize("command", ["plan", "up", "status", "run", "down"])
def test_a_fifo_for_a_file_is_refused_and_not_waited_for(phalanx, command, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert phalanx(command, "--file", str(tmp_path / "fifo"), *(["--", "true"] if command == "run" else [])) == 2
    phalanx.refused("cannot-read", "fifo: ")


def test_a_local_cloud_that_can_t_start_says_why(phalanx, tmp_path, monkeypatch):
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 2\n")
    failing = ["sh", "-c", "echo 'no sshd: apt-get install openssh-server' >&2; exit 1"]
    monkeypatch.setattr(endpoint, "_serve_argv", lambda: failing)
    assert phalanx("up") == 5
    phalanx.refused("local-cloud-impossible", "openssh-server")


@pytest.mark.parametrize(("goal", "lines"), [("setup", 1), ("demo", 0)])
def test_make_setup_alone_ends_with_what_comes_next(goal, lines):
    root = Path(__file__).parents[2]
    made = ["make", "--dry-run", "--directory", str(root), goal]
    (called,) = re.findall(r"scripts/setup.*", subprocess.run(made, capture_output=True, text=True, check=True).stdout)
    last = (root / "scripts/setup").read_text().splitlines()[-1]
    argv = ["bash", "-c", last, *called.split()]
    printed = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=True).stdout
    assert printed.count(f'Ready. Next: export PATH="{root}/.venv/bin:$PATH"') == lines


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_shell_s_script(phalanx, shell):
    assert phalanx("completion", shell) == 0
    assert "_PHALANX_COMPLETE" in phalanx.out
