"""A node's starter that a batch scheduler started: it logs in to the head, and passes its line to the job's runner."""

from __future__ import annotations

# The C half of `socket`, for the reason that keeper.py gives: one relay runs on the head for each node of the job.
import _socket
import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING

from phalanx.node.roster import MASTER
from phalanx.runner import checked
from phalanx.runner.batch.scheduling import count_here, granted_gpus
from phalanx.runner.head.membership import read_roster, this_node
from phalanx.runner.login import SSH, quoted
from phalanx.runner.names import RUNNER, WORK
from phalanx.runner.starter import inside
from phalanx.runner.starter.guard import main as serve
from phalanx.runner.system import MARK, spawn

if TYPE_CHECKING:
    from typing import Dict, Iterable, Mapping, Sequence

    from phalanx.runner.batch.scheduling import Scheduler

_ENVIRONMENT = "/etc/environment"
# For a runner that has ended, or a head that does not answer.
_TAKEN_WITHIN_S, _LOOK_EVERY_S = 5.0, 0.02


def attend(scheduler: Scheduler, directory: str, allocation: str, nodes: int, places: str) -> int:
    """Serve the job in this directory until its runner is done with this node; return an exit status.

    `nodes`: the number of nodes in the allocation; `places`: the processes on each, in the format of `count_here`.
    """
    node = this_node(read_roster())
    if node is None:
        print(f"{os.uname().nodename} is not a node of this phalanx cluster", file=sys.stderr)
        return 1
    slots = count_here(places, int(os.environ.get(scheduler.NODE_INDEX, "0")))
    gpus = granted_gpus(os.environ, scheduler.GPUS)
    hello = {"allocation": allocation, "node": node.name, "slots": slots, "nodes": nodes, "gpus": gpus}
    relay = _call_head(directory, json.dumps(hello), node.head)
    set_environment(scheduler)
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    job, work = os.path.basename(directory), os.path.join(directory, WORK)
    if not inside.is_served(job, work, *(["--head"] if node.head else [])):
        serve(job, work, node.head)
    _deliver(relay)
    return 0


def _call_head(directory: str, hello: str, is_head: bool) -> int:
    """Make stdin and stdout of this process the line to the runner; return the pid of what passes them on."""
    relay = checked.argv(os.path.join(directory, RUNNER), "relay", os.path.basename(directory), hello)
    argv = relay if is_head else (*SSH, MASTER, "exec " + " ".join(map(quoted, relay)))
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    pid = spawn(argv, os.environ, (to_read, from_write, 2), die_with_parent=True)
    os.dup2(from_read, 0)
    os.dup2(to_write, 1)
    for fd in (to_read, to_write, from_read, from_write):
        os.close(fd)
    return pid


def _deliver(relay: int) -> None:
    """Wait until the runner has the starter's last words and lets go: what passes them on ends with this process."""
    os.close(1)
    end = time.monotonic() + _TAKEN_WITHIN_S
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(relay, os.WNOHANG) == (0, 0) and time.monotonic() < end:
            time.sleep(_LOOK_EVERY_S)


def set_environment(scheduler: Scheduler) -> None:
    """Set the environment of a login over ssh: the node's contract, and nothing that leads engines to the scheduler."""
    with open(_ENVIRONMENT) as file:
        contract = assignments(file)
    keep = environment(os.environ, scheduler.HIDDEN, scheduler.SHOWN, contract)
    os.environ.clear()
    os.environ.update(keep)


def environment(
    found: Mapping[str, str], hidden: Sequence[str], shown: Sequence[str], contract: Mapping[str, str]
) -> Dict[str, str]:
    """Return the found variables that stay, overridden by the contract's."""
    kept = {
        name: value
        for name, value in found.items()
        if name in shown or (name != MARK and not any(name.startswith(prefix) for prefix in hidden))
    }
    return {**kept, **contract}


def assignments(lines: Iterable[str]) -> Dict[str, str]:
    """Return the assignments NAME="value", one a line, as pam_env reads them; the last one of a name counts."""
    pairs = (line.strip().partition("=")[::2] for line in lines if "=" in line and not line.lstrip().startswith("#"))
    return {name: value.strip("\"'") for name, value in pairs}


def relay(job_id: str, hello: str) -> int:
    """Pass stdin and stdout, on the head, to the job's runner, and stay until it is done with them."""
    from phalanx.runner.head.runner_socket import ATTEND, socket_name  # here, because only the head's part needs it

    runner = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        runner.connect("\0" + socket_name(job_id))
    except OSError:
        print(f"the runner of job {job_id} is gone", file=sys.stderr)
        return 1
    fds = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1))
    runner.sendmsg([ATTEND + hello.encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
    os.dup2(runner.fileno(), 0)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    # sshd forwards nothing once the command has ended; a waiting shell takes a tenth of Python's memory.
    return os.execv("/bin/sh", ["sh", "-c", "read -r over"])
