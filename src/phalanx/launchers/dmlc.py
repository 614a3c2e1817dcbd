"""MXNet's parameter server (ps-lite): a scheduler, servers and workers, each of which is the user's own command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Tuple

from phalanx.launchers import gpus
from phalanx.launchers.options import count
from phalanx.launchers.placement import place, spread
from phalanx.node.roster import Node, Roster
from phalanx.runner.process import PreparedJob, Process

NAME = "dmlc"
SUMMARY = "scheduler, servers and workers of a parameter server: MXNet's dist_sync and dist_async"
ENGINE: Tuple[str, ...] = ()
PROGRAM = ""
OPTIONS: Tuple[str, ...] = ("servers",)
RECIPES: Tuple[str, ...] = ("mxnet",)

# The number of the job's port that is the scheduler's; all others choose their own and register with it.
_SCHEDULER = 0


def processes(job: PreparedJob, roster: Roster) -> List[Process]:
    """Start one worker per slot (or as -n and -N say), one server per node, and the scheduler on the first node.

    Servers and scheduler run the same command, as with DMLC's own tracker: there, `import mxnet` serves and then exits.
    """
    workers = place(job, roster, evenly=True)
    each = gpus.per_process(job, roster, workers)
    nodes = [node for node in roster.nodes if node.name in workers]
    by_name = {node.name: node for node in nodes}
    servers = [nodes[number % len(nodes)] for number in range(count(job, "servers", len(nodes)))]
    group = _Group(job, nodes[0], sum(workers.values()), len(servers))
    return [
        group.process("scheduler", "", nodes[0], {}),
        *(group.process("server", str(number), node, {}) for number, node in enumerate(servers)),
        *(_worker(group, number, by_name[name], local, each) for number, (name, local) in enumerate(spread(workers))),
    ]


def _worker(group: _Group, number: int, node: Node, local: int, gpus_each: int) -> Process:
    """Give a worker its share of the node's GPUs; one that is alone on its node has all (`--gpus 0,1,2`)."""
    own = {"CUDA_VISIBLE_DEVICES": gpus.visible(group.job, node.name, local, gpus_each)} if gpus_each else {}
    return group.process("worker", str(number), node, own)


@dataclass(frozen=True)
class _Group:
    """What all processes of the job have in common."""

    job: PreparedJob
    first: Node
    workers: int
    servers: int

    def process(self, role: str, label: str, node: Node, own: Dict[str, str]) -> Process:
        is_worker, is_scheduler = role == "worker", role == "scheduler"
        return Process(
            label=label,
            node=node.name,
            argv=self.job.command,
            command=self.job.command,
            ranks={node.name: int(is_worker)},
            env={**self.job.role_env.get(role, {}), **own, **self._environment(role, label, node)},
            is_rank=is_worker,
            role=role,
            service=not is_worker,
            ports=(self.job.port(_SCHEDULER),) if is_scheduler else (),
        )

    def _environment(self, role: str, label: str, node: Node) -> Dict[str, str]:
        # Addresses, not names: ps-lite binds its sockets to these, and ZeroMQ resolves no names for binding.
        env = {
            "DMLC_ROLE": role,
            "DMLC_PS_ROOT_URI": self.first.address,
            "DMLC_PS_ROOT_PORT": str(self.job.port(_SCHEDULER)),
            "DMLC_NUM_WORKER": str(self.workers),
            "DMLC_NUM_SERVER": str(self.servers),
            "DMLC_TASK_ID": label or "0",
        }
        # ps-lite uses DMLC_INTERFACE only when DMLC_NODE_HOST is not set.
        return env if "DMLC_INTERFACE" in self.job.env else {**env, "DMLC_NODE_HOST": node.address}
