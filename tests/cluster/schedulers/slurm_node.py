"""Runs as root on each node with the packages' tree: makes it a member of a Slurm cluster that the head controls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from packages import lay

# A minimal Slurm: namespaces have no cgroups of their own, the network is trusted, and there is no accounting.
CONF = """\
ClusterName=lab
SlurmctldHost={head}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
StateSaveLocation=/var/lib/slurm
SlurmdSpoolDir=/var/lib/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MpiDefault=none
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""
NODE = "NodeName={hostname} NodeAddr={address} CPUs={slots} Gres=gpu:2 State=UNKNOWN"


def main(packages: str) -> None:
    """Mount the packages over /usr and start the daemons."""
    lay(packages)
    nodes = json.loads(Path("/opt/phalanx/roster.json").read_text())["nodes"]
    head = next(node for node in nodes if node["head"])
    for directory in ("/etc/slurm", "/var/lib/slurm", "/var/lib/slurmd"):
        Path(directory).mkdir()
    lines = "\n".join(NODE.format(**node) for node in nodes)
    Path("/etc/slurm/slurm.conf").write_text(CONF.format(head=f"{head['hostname']}({head['address']})", nodes=lines))
    # Slurm counts these and names to each job its own; nothing opens them.
    for number in range(2):
        Path(f"/var/lib/slurm/gpu{number}").symlink_to("/dev/null")
    Path("/etc/slurm/gres.conf").write_text("Name=gpu File=/var/lib/slurm/gpu[0-1]\n")
    # Without this it looks for a mounted hierarchy, and a namespace has none.
    Path("/etc/slurm/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    if Path("/etc/hostname").read_text().strip() == head["hostname"]:
        subprocess.run(["slurmctld"], check=True)
    subprocess.run(["slurmd"], check=True)


main(sys.argv[1])
