"""TensorFlow: starts the user's command once per task, which TF_CONFIG (or TF1's flags) describes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Dict, List, Optional, Tuple

from phalanx.launchers import gpus
from phalanx.launchers.options import count
from phalanx.launchers.placement import place
from phalanx.node.roster import Roster
from phalanx.runner.process import PreparedJob, Process, RefusedError

NAME = "tensorflow"
SUMMARY = "TensorFlow's workers and parameter servers: TF_CONFIG, or TF1's --ps_hosts and --worker_hosts"
ENGINE: Tuple[str, ...] = ()
PROGRAM = ""
OPTIONS: Tuple[str, ...] = ("ps", "tf-style")
RECIPES: Tuple[str, ...] = ("tensorflow",)

_STYLES = ("config", "flags")


def processes(job: PreparedJob, roster: Roster) -> List[Process]:
    """Start one worker per slot; with --ps also parameter servers, one on each node in turn, and for TF2 a chief.

    TF2's ParameterServerStrategy trains from the chief; its workers and servers serve, and none of them ends by itself.
    TF1's workers train and end; only its servers do not.
    """
    tasks = _tasks(job, roster)
    jobs: Dict[str, List[str]] = {}
    for task in tasks:
        jobs.setdefault(task.kind, []).append(task.address)
    return [task.process(job, jobs) for task in tasks]


@dataclass(frozen=True)
class _Task:
    """A task in TensorFlow's sense: the index-th of its kind ("chief", "worker", "ps"), at an address of its own."""

    kind: str
    index: int
    node: str
    port: int
    gpus: Optional[str]  # the value of CUDA_VISIBLE_DEVICES; None on a node without GPUs
    is_service: bool

    @property
    def address(self) -> str:
        return f"{self.node}:{self.port}"

    def process(self, job: PreparedJob, jobs: Dict[str, List[str]]) -> Process:
        flags, config = (), {}
        if _style(job) == "flags":
            flags = self._flags(jobs)
        else:
            task = {"cluster": jobs, "task": {"type": self.kind, "index": self.index}}
            config = {"TF_CONFIG": json.dumps(task)}
        visible = {} if self.gpus is None else {"CUDA_VISIBLE_DEVICES": self.gpus}
        return Process(
            label=str(self.index),
            node=self.node,
            argv=(*job.command, *flags),
            command=job.command,
            ranks={self.node: int(self.kind == "worker")},
            env={**job.role_env.get(self.kind, {}), **visible, **config},
            is_rank=self.kind == "worker",
            role=self.kind,
            service=self.is_service,
            ports=(self.port,),
        )

    def _flags(self, jobs: Dict[str, List[str]]) -> Tuple[str, ...]:
        return (
            f"--ps_hosts={','.join(jobs['ps'])}",
            f"--worker_hosts={','.join(jobs['worker'])}",
            f"--job_name={self.kind}",
            f"--task_index={self.index}",
        )


def _style(job: PreparedJob) -> str:
    style = job.options.get("tf-style", _STYLES[0])
    if style not in _STYLES:
        raise RefusedError(f"--tf-style is '{style}'\nIt is one of: {', '.join(_STYLES)}.", code="unknown-choice")
    return style


def _tasks(job: PreparedJob, roster: Roster) -> List[_Task]:
    placed = place(job, roster)
    is_flags = _style(job) == "flags"
    servers = count(job, "ps", len(placed) if is_flags else 0)
    each = gpus.per_process(job, roster, placed)
    chief = [("chief", next(iter(placed)), 0)] * (bool(servers) and not is_flags)
    workers = [("worker", node, local) for node, several in placed.items() for local in range(several)]
    ps = [("ps", node, 0) for node in islice(cycle(placed), servers)]
    return [
        _Task(
            kind=kind,
            index=index,
            node=node,
            port=job.port(number),
            gpus=_visible(job, kind, (node, local), each),
            is_service=kind == "ps" or (kind == "worker" and bool(chief)),
        )
        for number, (index, (kind, node, local)) in enumerate(
            pair for seats in (chief, workers, ps) for pair in enumerate(seats)
        )
    ]


def _visible(job: PreparedJob, kind: str, seat: Tuple[str, int], each: int) -> Optional[str]:
    """Show GPUs to workers only: TensorFlow takes all the memory of every GPU that a process sees."""
    if not each:
        return None
    return gpus.visible(job, *seat, each) if kind == "worker" else ""
