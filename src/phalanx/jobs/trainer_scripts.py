"""One shell script per host that starts TensorFlow 1's parameter server and workers there, for plain ssh.

They match those of generate_trainer.py of awslabs/deeplearning-cfn (examples/tensorflow), with the same ports, flags
and log names. There, servers ran until somebody killed them; here, they end when the workers have ended.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.errors import SpecError
from phalanx.node.roster import Roster

# As in generate_trainer.py.
_SERVER_PORT = 2222
_FIRST_WORKER_PORT = 2230

_SCRIPT = """\
#!/bin/bash
# `bash {host}.sh` on {host} starts its tasks and returns; their output is in {logs}.
source /etc/profile
{activate}logs={logs}
mkdir -p "$logs" && cd {directory} || exit
exec < /dev/null
{forget}

# {host}'s parameter server
{server} > "$logs/ps{index}" 2>&1 &
ps=$!

# its workers; worker<N>.exit is the exit status of each
{workers}

# The server is needed until the last worker of all hosts has ended; an earlier run may have had more of them.
(
    while [ "$(ls "$logs"/worker{{0..{last}}}.exit | wc -l)" -le {last} ] && kill -0 $ps; do sleep 1; done
    kill $ps
) > /dev/null 2>&1 &
"""


@dataclass(frozen=True)
class Host:
    """A node by its name in the workers file, with its number of workers. Without GPUs they may use any device."""

    name: str
    workers: int
    has_gpus: bool


def hosts(
    roster: Roster, names: Sequence[str] | None = None, count: int | None = None, workers: int | None = None
) -> list[Host]:
    """Return the first `count` of these names (default: all nodes), with `workers` each (default: one per GPU or slot).

    Raises SpecError for a name that is not in the roster, for too high a count, and for more workers than GPUs.
    """
    called = list(names) if names is not None else [node.name for node in roster.nodes]
    if count is not None and count > len(called):
        raise SpecError(
            f"--worker_count is {count}; there are {len(called)} hosts",
            "`phalanx nodes` lists them.",
            code="out-of-range",
        )
    chosen = called[:count]
    twice = next((name for name in chosen if chosen.count(name) > 1), None)
    if twice:
        raise SpecError(
            f"the workers file names {twice} twice",
            "Keep one line for each host: its workers have fixed ports.",
            code="hosts-file",
        )
    return [_host(roster, name, workers) for name in chosen]


def _host(roster: Roster, name: str, workers: int | None) -> Host:
    node = roster.find(name)
    if node is None:
        raise SpecError(
            f"there is no host {name} in cluster {roster.cluster}", "`phalanx nodes` lists them.", code="no-node"
        )
    if workers and node.gpus and workers > node.gpus:
        raise SpecError(
            f"--worker_gpu_count is {workers}; {name} has {node.gpus} GPUs",
            "Each worker needs one.",
            code="too-few-gpus",
        )
    return Host(name, workers or node.gpus or node.slots, node.gpus > 0)


def scripts(
    hosts: Sequence[Host], python: str, program: Sequence[str], logs: str, environment: str = ""
) -> dict[str, str]:
    """Return each host's script, by the host's name; in a virtual environment, if its path is given.

    Every task runs `program` (a file and arguments) in the file's directory; flags say which task it is. Raises
    SpecError when the file's path is not absolute.
    """
    if not program[0].startswith("/"):
        raise SpecError(
            f"--training_script {program[0]} is relative",
            "Name its path on all nodes, such as /efs/train.py.",
            code="relative-path",
        )
    servers = [f"{host.name}:{_SERVER_PORT}" for host in hosts]
    workers = [f"{host.name}:{_FIRST_WORKER_PORT + number}" for host in hosts for number in range(host.workers)]
    command = [python, *program, f"--ps_hosts={','.join(servers)}", f"--worker_hosts={','.join(workers)}"]
    activate = f"source {shlex.quote(environment + '/bin/activate')}\n" if environment else ""
    return {host.name: _script(hosts, index, command, logs, activate) for index, host in enumerate(hosts)}


def _script(hosts: Sequence[Host], index: int, command: Sequence[str], logs: str, activate: str) -> str:
    host = hosts[index]
    first = sum(before.workers for before in hosts[:index])
    workers = range(first, first + host.workers)
    return _SCRIPT.format(
        host=host.name,
        index=index,
        activate=activate,
        logs=shlex.quote(logs),
        directory=shlex.quote(posixpath.dirname(command[1])),
        forget="\n".join(f'rm -f "$logs/worker{number}.exit"' for number in workers),
        server=_task(command, "ps", index, ""),
        workers="\n".join(
            f"({_task(command, 'worker', number, str(number - first) if host.has_gpus else None)}"
            f'; echo $? > "$logs/worker{number}.exit") > "$logs/worker{number}" 2>&1 &'
            for number in workers
        ),
        last=sum(each.workers for each in hosts) - 1,
    )


def _task(command: Sequence[str], job: str, index: int, gpus: str | None) -> str:
    visible = "" if gpus is None else f"CUDA_VISIBLE_DEVICES='{gpus}' "
    return visible + shlex.join([*command, f"--job_name={job}", f"--task_index={index}"])
