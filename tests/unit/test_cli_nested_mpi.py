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


@pytest.mark.parametrize(
    ("argv", "typed"),
    [
        (["torchrun", "--nproc_per_node", "2", "t.py", "--x"], "phalanx run --launcher torchrun -N 2 -- t.py --x"),
        (["/opt/bin/torchrun", "--nproc-per-node=gpu", "t.py"], "phalanx run --launcher torchrun -- t.py"),
        (["python3", "-m", "torch.distributed.run", "t.py"], "phalanx run --launcher torchrun -- t.py"),
        (["accelerate", "launch", "--num_processes=4", "t.py"], "phalanx run --launcher torchrun -n 4 -- t.py"),
        (["deepspeed", "--num_gpus", "8", "t.py"], "phalanx run --launcher deepspeed -N 8 -- t.py"),
        (["horovodrun", "-np", "4", "python", "t.py"], "phalanx run --launcher mpi -n 4 -- t.py"),
        (["torchrun", "-m", "pkg.train"], "phalanx run --launcher torchrun -- SCRIPT"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--launcher", "torchrun"], ["--launcher", "mpi", "-n", "2"]])
def test_a_program_that_starts_ranks_is_not_started_once_for_each_rank(phalanx, options, argv, typed):
    assert phalanx("run", *options, "--", *argv) == 2
    assert f"`{typed}`" in phalanx.err


@pytest.mark.parametrize("options", [["--launcher", "exec"], ["-n", "1"]])
def test_it_may_run_once_or_once_on_each_node(phalanx, options):
    phalanx("run", *options, "--", "torchrun", "--nnodes", "2", "t.py")
    phalanx.refused("no-cluster")
