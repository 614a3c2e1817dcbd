"""MPI: runs one mpiexec on the head (Open MPI 4 and 5, or MPICH and relatives), which starts all ranks."""

from __future__ import annotations

from typing import Dict, List, Tuple

from phalanx.launchers import gpus
from phalanx.launchers.placement import place
from phalanx.node.roster import Roster
from phalanx.runner.process import PreparedJob, Process

NAME = "mpi"
SUMMARY = "mpiexec over all slots: MPI programs, mpi4py, ChainerMN"
ENGINE = ("mpiexec", "--version")
PROGRAM = "mpiexec"
OPTIONS: Tuple[str, ...] = ()
RECIPES: Tuple[str, ...] = ("openmpi", "mpich", "chainermn", "chainercv")

# The variables that contain a process's rank: Open MPI's, then that of MPICH, Intel MPI and MVAPICH.
_RANK = "OMPI_COMM_WORLD_RANK,PMI_RANK"

# Open MPI moves each agent into its own process group twice, in mpiexec and in the agent, which sometimes is faster:
# "Ignore this error since the child is off and running", its source says (plm_rsh_module.c, plm_ssh_module.c).
_HARMLESS = r"^\[[^\]\n]*\] plm:[rs]sh: Warning: setpgid\(\d+,\d+\) failed in parent with errno=.*\n\n?"

# Each rank has its own node's environment, which already contains the job's variables.
_HYDRA_FLAGS = ("-genvnone",)
# mpiexec 4.1.4 waits forever for a detached daemon that dies before it reports, and its exit code would be unknown.
_OPEN_MPI_FLAGS = ("--leave-session-attached",)


def processes(job: PreparedJob, roster: Roster) -> List[Process]:
    """Start one mpiexec; its hostfile gives each node exactly the slots to use."""
    ranks = place(job, roster)
    gpus.require_alike(job, roster, ranks)
    hydra = _is_hydra(job.engine)
    hosts = ("-f" if hydra else "--hostfile", f"{job.directory}/hostfile", "-n", str(sum(ranks.values())))
    mpiexec = Process(
        label="mpiexec",
        node=next(iter(ranks)),
        argv=("mpiexec", *hosts, *(_HYDRA_FLAGS if hydra else _OPEN_MPI_FLAGS), *job.keeper(_RANK)),
        command=job.command,
        ranks=ranks,
        env=_environment(job),
        files={"hostfile": _hostfile(ranks, hydra), "agent": _agent(job)},
        early=len(ranks) > 1,
        harmless=_HARMLESS,
        holds_ends=True,
    )
    return [mpiexec]


def _is_hydra(engine: str) -> bool:
    return "HYDRA" in engine.upper() or "Intel(R) MPI" in engine


def _hostfile(ranks: Dict[str, int], hydra: bool) -> str:
    line = "{}:{}" if hydra else "{} slots={}"
    return "".join(line.format(node, count) + "\n" for node, count in ranks.items())


def _agent(job: PreparedJob) -> str:
    # The agent asks the head's runner, whose ssh connections to the nodes are open: this saves a handshake, and the
    # engine's daemons become children of the node's starter, which sees how they end.
    return f'#!/bin/sh\nexec python3 -IS "{job.directory}/rsh_agent.py" "$@"\n'


def _environment(job: PreparedJob) -> Dict[str, str]:
    agent = f"{job.directory}/agent"
    names: Tuple[Tuple[str, str], ...] = (
        ("OMPI_MCA_plm_rsh_agent", agent),
        ("OMPI_MCA_plm_rsh_no_tree_spawn", "1"),
        ("PRTE_MCA_plm_ssh_agent", agent),
        ("PRTE_MCA_plm_ssh_no_tree_spawn", "1"),
        ("HYDRA_LAUNCHER", "ssh"),
        ("HYDRA_LAUNCHER_EXEC", agent),
    )
    return dict(names)
