"""`phalanx run --stdin`: the job keeps the input, and rank 0 reads it; without it no input is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_jobs import outcome, run

from phalanx.cli import run as run_command
from phalanx.jobs.job import JobSpec, submit

SCRIPT = b"import sys; print('ran', flush=True)\n"
LAUNCHERS = [
    "exec",
    "jax",
    "tensorflow",
    pytest.param("mpi", marks=pytest.mark.skipif(not shutil.which("mpiexec"), reason="no mpiexec")),
]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_rank_0_reads_the_input_and_no_other(two_nodes, code, launcher):
    lines, status = run(two_nodes, code, "python3", "-", launcher=launcher, processes=2, stdin=SCRIPT)
    assert (status.state.value, [line.rpartition(": ")[2] for line in lines]) == ("succeeded", ["ran"]), (
        status.message,
        lines,
    )
    kept = Path(two_nodes.shared, ".phalanx/jobs", status.id, "stdin")
    assert (kept.read_bytes(), kept.stat().st_mode & 0o777) == (SCRIPT, 0o600)


@pytest.mark.parametrize("command", ["sh /dev/stdin", "nice sh /dev/fd/0", "python3 /dev/stdin"])
def test_the_input_may_be_named_as_a_file(two_nodes, code, command):
    script = SCRIPT if "python" in command else b"echo ran\n"
    lines, status = run(two_nodes, code, *command.split(), processes=1, stdin=script)
    assert (status.state.value, lines[0].rpartition(": ")[2]) == ("succeeded", "ran"), (status.message, lines)


def test_a_restart_reads_it_again_from_the_beginning(two_nodes, code):
    script = b"import os\nprint('read')\nif not os.path.exists('x'): open('x', 'w'); os._exit(3)\n"
    lines, status = run(two_nodes, code, "python3", "-u", "-", processes=1, stdin=script, restarts=1)
    assert status.state.value == "succeeded"
    assert len([line for line in lines if "read" in line]) == 2


def test_a_resumed_job_reads_what_the_earlier_one_read(two_nodes, code):
    options = {"processes": 1, "checkpoint": "kept"}
    _, earlier = run(two_nodes, code, "python3", "-", stdin=SCRIPT, **options)
    job = submit(two_nodes, JobSpec((), resume=earlier.id, directory=code))
    lines, status = outcome(job.follow())
    assert (status.state.value, len(lines)) == ("succeeded", 1)
    job = submit(two_nodes, JobSpec((), resume=status.id, directory=code, stdin=b"print('other')"))
    assert outcome(job.follow())[0][0].endswith("other")


def test_without_it_a_rank_reads_nothing(two_nodes, code):
    lines, status = run(two_nodes, code, "python3", "-c", "print(len(__import__('sys').stdin.read()))", processes=1)
    assert (status.state.value, lines[0][-1]) == ("succeeded", "0")


def test_the_command_sends_its_input(two_nodes, code, monkeypatch):
    started = []
    two_nodes.require_ready = lambda: None
    monkeypatch.setattr(run_command, "load_cluster", lambda *_: two_nodes)
    monkeypatch.setattr(run_command, "start", lambda _, spec, *_rest: started.append(spec))
    for arguments in (["--stdin"], ["--stdin", "--detach"], []):
        argv = [*arguments, "--launcher", "exec", "--directory", str(code), "--", "python3", "-"]
        CliRunner().invoke(run_command.command, argv, input=SCRIPT, standalone_mode=False)
    assert [spec.stdin for spec in started] == [SCRIPT, SCRIPT, None]


def phalanx(tmp_path: Path, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PHALANX_STATE_DIR": str(tmp_path / "state")}
    argv = [sys.executable, "-m", "phalanx", "run", *arguments]
    return subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, **options)


def test_a_loop_keeps_its_input_and_a_lost_script_is_refused(tmp_path):
    done = phalanx(tmp_path, "-c", "none", "--", "python", "-", input="print(1)\n")
    assert done.returncode == 2 and "--stdin" in done.stderr
    listed = tmp_path / "list"
    listed.write_text("a\nb\n")
    with listed.open() as file:
        done = phalanx(tmp_path, "-c", "none", "--", "python", "t.py", stdin=file)
        assert "no cluster 'none'" in done.stderr
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 0
        assert "--stdin" in phalanx(tmp_path, "-c", "none", "--", "bash", stdin=file).stderr
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 0
    done = phalanx(tmp_path, "-c", "none", "--", "bash", stdin=subprocess.DEVNULL)
    assert "no cluster 'none'" in done.stderr
