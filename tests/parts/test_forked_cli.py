"""The tests' own way to run phalanx: a forked command does what one does that was executed."""

from __future__ import annotations

import os
import stat
import subprocess
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


def test_it_is_executed_where_python_itself_reads_the_environment(tmp_path: Path) -> None:
    done = forked_cli.run([str(PHALANX), "ls"], tmp_path, {**os.environ, "PYTHONVERBOSE": "1"}, WITHIN_S)
    assert "import 'click'" in done.stderr


def test_it_ends_when_its_time_is_up(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forked_cli.run([str(PHALANX), "ls"], tmp_path, os.environ, 0.0)
