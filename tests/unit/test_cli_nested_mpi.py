"""`phalanx run -- mpiexec …`: an mpiexec can't start another one."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("argv", "typed"),
    [
        (["mpiexec", "-n", "4", "-N", "2", "hostname"], "phalanx run --launcher mpi -n 4 -N 2 -- hostname"),
        (["/opt/openmpi/bin/mpirun", "-np", "4", "hostname", "-f"], "phalanx run --launcher mpi -n 4 -- hostname -f"),
        (["mpiexec", "--hostfile", "hosts", "-n", "4", "hostname"], "phalanx run --launcher mpi -n N -- PROGRAM"),
        (["mpiexec"], "phalanx run --launcher mpi -n N -- PROGRAM"),
    ],
)
def test_mpiexec_inside_mpiexec_is_refused_with_what_to_type(phalanx, argv, typed):
    assert phalanx("run", "--", *argv) == 2
    assert "the launcher mpi" in phalanx.err and f"{argv[0]} can't" in phalanx.err
    assert f"`{typed}`" in phalanx.err
    assert f"`phalanx run --launcher exec -n 1 -- {' '.join(argv)}`" in phalanx.err


@pytest.mark.parametrize("options", [["--launcher", "exec", "-n", "1"], ["--resume", "earlier"]])
def test_mpiexec_under_another_launcher_is_not_refused(phalanx, options):
    phalanx("run", *options, "--", "mpiexec", "-n", "4", "hostname")
    phalanx.refused("no-cluster")
