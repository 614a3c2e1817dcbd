"""The end of a job whose runner is gone, or of a node whose connection broke: ask the nodes over new connections."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from typing import TYPE_CHECKING

from phalanx.node.process import RUNNER
from phalanx.node.runner import state as states
from phalanx.node.runner.channel import command_on
from phalanx.node.runner.reaper import GRACE_S, KILL_WAIT_S

if TYPE_CHECKING:
    from typing import Any, Dict, List, Sequence, Tuple

# Connection set-up included; ssh itself gives up on a silent node after 15 s.
_DEADLINE_S = GRACE_S + KILL_WAIT_S + 20.0


def verify(directory: str, job_id: str, nodes: Sequence[Tuple[str, bool]]) -> List[Dict[str, Any]]:
    """End what is left of the job on these (node, is it the head?) and prove it; one verdict per node."""
    deadline = time.monotonic() + _DEADLINE_S
    runner = os.path.join(directory, RUNNER)
    asked = [(node, _start(command_on(node, is_head, runner, "reap", job_id))) for node, is_head in nodes]
    return [_verdict(node, process, deadline) for node, process in asked]


def settle(directory: str) -> states.State:
    """The final state of a job; when its runner died without one, the nodes are verified and the job is lost."""
    state = states.read(directory)
    if state["state"] in states.FINAL or states.runner_lives(state):
        return state
    with open(os.path.join(directory, "settle.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = states.read(directory)
        if state["state"] in states.FINAL or states.runner_lives(state):
            return state
        lost = lost_state(state)
        hosts = [(node, number == 0) for number, node in enumerate(state["hosts"])]
        lost["nodes"] = verify(directory, state["id"], hosts)
        states.write(directory, lost)
        return lost


def lost_state(state: states.State) -> states.State:
    """How a job is shown whose runner is gone and whose state is not final."""
    message = "the job's runner on the head ended without a word (killed, or the head was restarted)"
    return {**state, "state": states.LOST, "message": message, "ended_at": time.time()}


def _start(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _verdict(node: str, process: subprocess.Popen[bytes], deadline: float) -> Dict[str, Any]:
    try:
        out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return states.unverified(node, f"no answer within {_DEADLINE_S:g} s")
    if process.returncode != 0:
        reason = err.decode(errors="replace").strip().splitlines()
        return states.unverified(node, reason[-1] if reason else f"ssh ended with {process.returncode}")
    return states.verdict(node, json.loads(out.splitlines()[-1]))
