"""The tests' own way to run phalanx: a forked command does what one does that was executed."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

import forked_cli
import pytest
from benchmarks.measure import PHALANX

WITHIN_S = 120.0


@pytest.mark.parametrize(
    "command", ["--help", "ls --json", "status", "init", "nonsense", "plan --file missing.yaml --json"]
)
def test_it_says_the_same_with_the_same_status(tmp_path: Path, command: str) -> None:
    env = {**os.environ, "PHALANX_STATE_DIR": str(tmp_path / "state")}
    argv = [str(PHALANX), *command.split()]
    one, other = tmp_path / "one", tmp_path / "other"
    for directory in (one, other):
        directory.mkdir()
    forked = forked_cli.run(argv, one, env, WITHIN_S)
    executed = subprocess.run(argv, cwd=other, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (forked.returncode, forked.stdout, forked.stderr) == (executed.returncode, executed.stdout, executed.stderr)
    assert [path.name for path in one.iterdir()] == [path.name for path in other.iterdir()]


def test_it_has_the_callers_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        forked_cli.run([str(PHALANX), "init"], tmp_path, os.environ, WITHIN_S)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "phalanx.yaml").stat().st_mode) == 0o600


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_started_one_ends_by_a_signal_while_it_writes(tmp_path: Path, number: signal.Signals) -> None:
    argv, ended = [str(PHALANX), "schema"], []
    for start in (forked_cli.start, executed):
        reader, writer = os.pipe()
        # Less than it writes.
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        with start(argv, tmp_path, os.environ, writer, subprocess.PIPE) as process, open(reader, "rb", 0) as output:
            os.close(writer)
            # How much else it has written by then depends on the moment.
            assert output.read(1) == b"{"
            assert process.poll() is None
            process.send_signal(number)
            output.read()
            ended.append((process.communicate(timeout=WITHIN_S)[1], process.returncode))
    assert ended[0] == ended[1] and ended[0][1] != 0


def executed(argv: list[str], cwd: Path, env: Mapping[str, str], stdout: int, stderr: int) -> subprocess.Popen[str]:
    return subprocess.Popen(argv, cwd=cwd, env=env, stdout=stdout, stderr=stderr, text=True)


def test_it_is_executed_where_python_itself_reads_the_environment(tmp_path: Path) -> None:
    done = forked_cli.run([str(PHALANX), "ls"], tmp_path, {**os.environ, "PYTHONVERBOSE": "1"}, WITHIN_S)
    assert "import 'click'" in done.stderr


def test_it_ends_when_its_time_is_up(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forked_cli.run([str(PHALANX), "ls"], tmp_path, os.environ, 0.0)
