"""`phalanx run -- mpiexec …`: an mpiexec can't start another one."""

from __future__ import annotations

from pathlib import Path

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
        (["env", "LR=1", "torchrun", "t.py"], "phalanx run --launcher torchrun -- t.py"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--launcher", "torchrun"], ["--launcher", "mpi", "-n", "2"]])
def test_a_program_that_starts_ranks_is_not_started_once_for_each_rank(phalanx, options, argv, typed):
    assert phalanx("run", *options, "--", *argv) == 2
    assert f"`{typed}`" in phalanx.err


SCRIPT = (
    "#!/bin/bash\n# torchrun old.py\npip install deepspeed\nLR=1 torchrun \\\n  --nproc_per_node 2 t.py | tee log\n"
)


@pytest.mark.parametrize(
    ("argv", "typed"),
    [
        (["bash", "-c", "cd src; torchrun t.py && echo done"], "phalanx run --launcher torchrun -- t.py"),
        (["sh", "run.sh"], "phalanx run --launcher torchrun -N 2 -- t.py"),
        (["./run.sh", "--epochs", "3"], "phalanx run --launcher torchrun -N 2 -- t.py"),
        (["bash", "-eo", "pipefail", "run.sh"], "phalanx run --launcher torchrun -N 2 -- t.py"),
        (["bash", "-c", "time mpirun -np 4 python t.py"], "phalanx run --launcher mpi -n 4 -- python t.py"),
    ],
)
def test_a_shell_script_that_starts_ranks_is_not_started_once_for_each_rank(phalanx, argv, typed):
    Path("run.sh").write_text(SCRIPT)
    assert phalanx("run", "--", *argv) == 2
    assert f"`{typed}`" in phalanx.err
    for options in (["--launcher", "exec"], ["--launcher", "mpi"], ["-n", "1"]):
        phalanx("run", *options, "--", *argv)
        phalanx.refused("no-cluster")


def test_a_variable_before_the_command_leads_to_env(phalanx):
    assert phalanx("run", "-n", "2", "--", "LR=1", "python", "t.py") == 2
    assert "`phalanx run --env LR=1 -- python t.py`" in phalanx.err


@pytest.mark.parametrize(
    ("argv", "typed"),
    [
        (["python", "{here}/src/t.py", "--x"], "python src/t.py --x"),
        (["env", "LR=1", "python3", "-u", "../{name}/src/t.py"], "env LR=1 python3 -u src/t.py"),
        (["{here}/src/t.py"], "src/t.py"),
        (["sh", "{here}/src/run.sh"], "sh src/run.sh"),
    ],
)
def test_a_path_of_this_machine_leads_to_that_in_the_code(phalanx, argv, typed):
    here = Path.cwd()
    (here / "src").mkdir()
    for name in ("t.py", "run.sh"):
        (here / "src" / name).write_text("")
    argv = [word.format(here=here, name=here.name) for word in argv]
    assert phalanx("run", "--", *argv) == 2
    assert f"`phalanx run -- {typed}`" in phalanx.err
    for elsewhere in ("/efs/t.py", f"{here}/none.py", "src/t.py"):
        phalanx("run", "--", "python", elsewhere)
        phalanx.refused("no-cluster")


@pytest.mark.parametrize("options", [["--launcher", "exec"], ["-n", "1"]])
def test_it_may_run_once_or_once_on_each_node(phalanx, options):
    phalanx("run", *options, "--", "torchrun", "--nnodes", "2", "t.py")
    phalanx.refused("no-cluster")
