"""MPI: one mpiexec on the head (Open MPI 4 and 5, MPICH and its kin) that starts the ranks on every node."""

from __future__ import annotations

from typing import Dict, List, Tuple

from phalanx.launchers.placement import place
from phalanx.node.process import JobDescription, Process
from phalanx.node.roster import Roster

NAME = "mpi"
SUMMARY = "mpiexec over all slots: MPI programs, mpi4py, ChainerMN"
ENGINE = ("mpiexec", "--version")
OPTIONS: Tuple[str, ...] = ()

# Where the engines say a process's rank: Open MPI, then MPICH, Intel MPI and MVAPICH.
_RANK = "OMPI_COMM_WORLD_RANK,PMI_RANK"


def processes(job: JobDescription, roster: Roster) -> List[Process]:
    """One mpiexec; its hostfile gives each node exactly the slots that are to be used."""
    ranks = place(job, roster)
    hydra = _is_hydra(job.engine)
    flag = "-f" if hydra else "--hostfile"
    flags = (flag, f"{job.directory}/hostfile", "-n", str(sum(ranks.values())))
    mpiexec = Process(
        label="mpiexec",
        node=next(iter(ranks)),
        argv=("mpiexec", *flags, *(("-genvnone",) if hydra else ()), *job.keeper(_RANK)),
        command=job.command,
        ranks=ranks,
        env=_environment(job),
        files={"hostfile": _hostfile(ranks, hydra), "agent": _agent(job)},
        early=True,
    )
    return [mpiexec]


def _is_hydra(engine: str) -> bool:
    return "HYDRA" in engine.upper() or "Intel(R) MPI" in engine


def _hostfile(ranks: Dict[str, int], hydra: bool) -> str:
    line = "{}:{}" if hydra else "{} slots={}"
    return "".join(line.format(node, count) + "\n" for node, count in ranks.items())


def _agent(job: JobDescription) -> str:
    # It asks the head's runner, whose ssh connections to the nodes are open already: no second handshake, and the
    # engine's daemons belong to the node's starter, which knows their end.
    return f'#!/bin/sh\nexec python3 -IS "{job.directory}/agent.py" "$@"\n'


def _environment(job: JobDescription) -> Dict[str, str]:
    agent = f"{job.directory}/agent"
    names: Tuple[Tuple[str, str], ...] = (
        ("OMPI_MCA_plm_rsh_agent", agent),
        ("OMPI_MCA_plm_rsh_no_tree_spawn", "1"),
        # A daemon that detached and then dies before it reported leaves mpiexec 4.1.4 waiting for ever.
        ("OMPI_MCA_orte_leave_session_attached", "1"),
        ("PRTE_MCA_plm_ssh_agent", agent),
        ("PRTE_MCA_plm_ssh_no_tree_spawn", "1"),
        ("PRTE_MCA_prte_leave_session_attached", "1"),
        ("HYDRA_LAUNCHER", "ssh"),
        ("HYDRA_LAUNCHER_EXEC", agent),
    )
    return dict(names)
