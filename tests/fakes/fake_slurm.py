"""A Slurm of one node for jobs on `fake_nodes`: its four commands are shell scripts, which tests control."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

from fake_nodes import FakeCluster

# If a file fate.N exists, job N ends as it says before it starts; otherwise its script runs, inside grant.N.
_SBATCH = """
number=$(( $(cat last 2>/dev/null || echo 0) + 1 ))
cat >script.$number
echo "$@" >asked.$number
echo $number >last
echo $number
for word; do case $word in --output=*) out=${word#*=};; esac; done
if [ -e fate.$number ]; then echo "slurmd: no such directory" >"$out"; mv fate.$number state.$number; exit; fi
echo RUNNING >state.$number
export SLURM_JOB_ID=$number SLURM_JOB_NUM_NODES=1 SLURM_TASKS_PER_NODE=2
[ ! -e grant ] || . ./grant
setsid sh -c "echo \\$\\$ >pid.$number; sh ./script.$number; [ -e over.$number ] || echo COMPLETED >state.$number" \\
    >"$out" 2>&1 </dev/null &
"""
_SCONTROL = 'for id; do :; done; echo "JobId=$id JobState=$(cat state.$id) Reason=None"\n'
_SCANCEL = """
touch over.$1
echo CANCELLED >state.$1
[ ! -e pid.$1 ] || kill -- -$(cat pid.$1)
"""
_SRUN = """
env >srun.env
while :; do case $1 in --*) shift;; *) break;; esac; done
SLURM_NODEID=0 SLURM_LOCALID=1 "$@"
SLURM_NODEID=0 SLURM_LOCALID=0 exec "$@"
"""


class FakeSlurm:
    """The fake Slurm, on the PATH of the head's login shells."""

    def __init__(self, cluster: FakeCluster, gpus: int = 0) -> None:
        self.root = cluster.root / "slurm"
        (self.root / "bin").mkdir(parents=True)
        for name, text in {"sbatch": _SBATCH, "scontrol": _SCONTROL, "scancel": _SCANCEL, "srun": _SRUN}.items():
            self.will_run(name, text)
        (self.root / ".profile").write_text(f"PATH={self.root}/bin:{cluster.env['PATH']}\n")
        cluster.env["HOME"] = str(self.root)
        cluster.be_found(gpus)

    def will_run(self, name: str, text: str) -> None:
        """Let a command of Slurm run this text."""
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\ncd {self.root} || exit\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def will_end(self, number: int, state: str) -> None:
        """Let job `number` end before it starts."""
        (self.root / f"fate.{number}").write_text(state)

    def end(self, number: int, state: str) -> None:
        """End job `number` now, with all its processes."""
        (self.root / f"over.{number}").touch()
        (self.root / f"state.{number}").write_text(state)
        os.killpg(int((self.root / f"pid.{number}").read_text()), signal.SIGKILL)

    def grant(self, **variables: str) -> None:
        """Set variables for all later jobs."""
        (self.root / "grant").write_text("".join(f"export {name}='{value}'\n" for name, value in variables.items()))

    def asked(self, number: int) -> str:
        """Return sbatch's arguments for a job."""
        return (self.root / f"asked.{number}").read_text()

    def environment_of_srun(self) -> dict[str, str]:
        """Return the environment of the last srun."""
        lines = (self.root / "srun.env").read_text().splitlines()
        return dict(line.partition("=")[::2] for line in lines)

    def states(self) -> list[str]:
        """Return the states of all jobs, in order."""
        paths: list[Path] = sorted(self.root.glob("state.*"))
        return [path.read_text().strip() for path in paths]
