"""Restarts of real engines on real nodes; what all launchers have in common is tested in tests/parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from terminals import Terminal
from verdicts import is_proven

pytestmark = pytest.mark.cluster


def run(cluster: Terminal, code: Path, launcher: str, processes: int, script: str):
    """Run a job with one process on each of some nodes, which may restart three times."""
    (code / "rank.sh").write_text(script)
    how = ("--launcher", launcher, "-n", str(processes), "-N", "1", "--restarts", "3")
    return cluster.phalanx("run", "--directory", str(code), *how, "--", "sh", "rank.sh", check=False)


def test_mpiexec_starts_again_on_all_nodes_after_a_rank_has_failed(cluster, tmp_path):
    fails = "[ $OMPI_COMM_WORLD_RANK$PHALANX_RESTART != 30 ] || exit 4\n"
    waits = "[ $PHALANX_RESTART = 1 ] || exec sleep 4711\n"
    done = run(cluster, tmp_path, "mpi", 4, f"{fails}{waits}echo $(hostname) $PHALANX_RESTART\n")
    assert (done.returncode, len(set(done.stdout.splitlines()))) == (0, 4), done.stderr
    assert {line.split()[2] for line in done.stdout.splitlines()} == {"1"}
    assert "restart 1 of 3: rank 3 on deeplearning-worker4 ended with exit code 4" in done.stderr
    assert is_proven(done.stderr, 4)


def test_torchruns_own_time_does_not_hide_that_its_ranks_fail_at_once(cluster, tmp_path):
    done = run(cluster, tmp_path, "torchrun", 1, "echo try $PHALANX_RESTART; exit 3\n")
    assert done.returncode == 3
    assert "the same failure twice within 5 s of its start, so it is not restarted (1 of 3)" in done.stderr
    assert [line for line in done.stdout.splitlines() if "try" in line] == ["[0] try 0", "[0] try 1"]
