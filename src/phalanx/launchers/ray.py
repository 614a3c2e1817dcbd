"""Ray: starts a Ray cluster for the time of the job, and the user's command on the head as its driver."""

from __future__ import annotations

import pkgutil
import shlex
from typing import Dict, List, Tuple

from phalanx.launchers.placement import place
from phalanx.node.roster import Node, Roster
from phalanx.runner.process import PreparedJob, Process

NAME = "ray"
SUMMARY = "a Ray cluster for the time of the job; the command runs once, on the head, as its driver"
ENGINE: Tuple[str, ...] = ()
PROGRAM = "ray"
OPTIONS: Tuple[str, ...] = ()
RECIPES: Tuple[str, ...] = ("ray",)

# Numbers of the job's ports; Ray's defaults would collide with another job's cluster on the same node.
_GCS, _AGENT = range(2)
_DRIVER = "driver"
_NODES = "ray_nodes.py"
_TOKEN = "ray-token"
# The variable with the rank, for the keeper: there is only one.
_RANK = "PHALANX_RANK"
# Ray's advice on how to connect, add nodes and stop: phalanx does all that. Warnings and errors have other levels. Ray
# may write a line and its line break separately.
_ADVICE = r"^(?:[-\d]+ [\d:,]+\t(?:INFO|SUCC) .*)?\n?"
# Ray's default of 30 s is too short for nodes that all start at once.
_START_TIMEOUT_S = "120"


def processes(job: PreparedJob, roster: Roster) -> List[Process]:
    """Run `ray start` on every node, with as many CPUs as -n and -N (or the slots) say; then the command."""
    cpus = place(job, roster)
    nodes = [node for node in roster.nodes if node.name in cpus]
    address = f"{nodes[0].address}:{job.port(_GCS)}"
    return [_driver(job, nodes[0], address, len(nodes)), *(_ray(job, node, nodes[0], cpus) for node in nodes)]


def _driver(job: PreparedJob, head: Node, address: str, nodes: int) -> Process:
    source = pkgutil.get_data(__package__ or "", _NODES) or b""
    # In two steps, the second under a keeper, so that the start of the command itself is known.
    wait = f"python3 {shlex.quote(f'{job.directory}/{_NODES}')} {nodes}"
    return Process(
        label=f"driver@{head.name}",
        node=head.name,
        argv=(f"{job.directory}/{_DRIVER}", *job.keeper(_RANK)),
        command=job.command,
        ranks={head.name: 1},
        env={"RAY_ADDRESS": address, _RANK: "0", **_key(job)},
        files={_DRIVER: f'#!/bin/sh\n{wait} && "$@"\nexit\n', _NODES: source.decode(), _TOKEN: job.token},
    )


def _ray(job: PreparedJob, node: Node, head: Node, cpus: Dict[str, int]) -> Process:
    ports = (job.port(_AGENT),) if node != head else (job.port(_GCS), job.port(_AGENT))
    return Process(
        label=f"ray@{node.name}",
        node=node.name,
        argv=("ray", "start", *_flags(job, node, head, cpus[node.name])),
        command=job.command,
        ranks={node.name: 0},
        env={"RAY_raylet_start_wait_time_s": _START_TIMEOUT_S, **_key(job)},
        service=True,
        ports=ports,
        harmless=_ADVICE,
        places={node.name: cpus[node.name]},
    )


def _key(job: PreparedJob) -> Dict[str, str]:
    """Return the variables of Ray's token: without it, anyone who reaches Ray's ports may run anything."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{job.directory}/{_TOKEN}"}


def _flags(job: PreparedJob, node: Node, head: Node, cpus: int) -> Tuple[str, ...]:
    own: Dict[str, object] = {
        "node-ip-address": node.address,
        "num-cpus": cpus,
        "num-gpus": node.gpus,
        "dashboard-agent-listen-port": job.port(_AGENT),
    }
    if node == head:
        role: Dict[str, object] = {
            "port": job.port(_GCS),
            "include-dashboard": "false",
        }
    else:
        role = {"address": f"{head.address}:{job.port(_GCS)}"}
    flags = (f"--{name}={value}" for name, value in {**role, **own}.items())
    return (*(("--head",) if node == head else ()), *flags, "--disable-usage-stats", "--block")
