"""The agent's daemon: started, and started again, by systemd if that runs the machine, and otherwise by itself."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Optional

from phalanx.node import contract, credentials, failure, files, firewall, logins, nfs_metrics, progress, shared_memory
from phalanx.node.agent import Agent
from phalanx.node.aws_client import AwsError
from phalanx.node.command import CommandError, run
from phalanx.node.disk import HOME, RESTART_S, SERVE
from phalanx.node.metadata import Metadata
from phalanx.node.settings import Settings

_GPUS, _DATA = "GPUs", "data"
# Before another try after an error.
_PAUSE_S = 5
# Of the node's timeout, so that the reason is reported before the node counts as missing.
_PATIENCE = 0.9
# Waits for the end of the daemon, which holds the other end of its input and never ends by itself, and acts as the unit
# does then: it starts the agent again until that ends with 0. A shell, because it needs a tenth of the memory.
_AGAIN = f'read -r end; sleep {RESTART_S}; until "$@"; do sleep {RESTART_S}; done'


class _Output:
    """This process's output, whose loss ends nothing: it may go to a file on a disk that a job has filled."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            os.write(1, text.encode("utf-8", "replace"))
        return len(text)

    def flush(self) -> None:
        """Do nothing: nothing waits."""


def start(agent: Agent) -> None:
    """Start the agent in the background, by the unit that is there already."""
    root = agent.root
    if os.path.isdir(f"{root}/run/systemd/system"):
        run(["systemctl", "daemon-reload"], 60)
        # One that runs already is of the node of which this image was made.
        run(["systemctl", "restart", "phalanx"], 60)
    elif detach(f"{root}{HOME}/agent.log"):
        # The daemon is a fork of this process, which has imported and fetched all it needs. It also sends the boot log,
        # because a second stream would cost the node two more calls.
        serve(agent.settings, agent.metadata, root, agent)
    else:
        agent.log.lines.clear()


def detach(log: str) -> bool:
    """Fork twice; return True in the daemon, which has no terminal and writes to `log`. Its parent starts it again."""
    if os.fork():
        return False
    os.setsid()
    os.chdir("/")
    alive, held = os.pipe()
    with open(log, "a") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.dup2(alive, 0)
    if os.fork():
        os.close(held)
        os.execv("/bin/sh", ["sh", "-c", _AGAIN, "sh", *SERVE])
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.close(alive)
    return True


def serve(settings: Settings, metadata: Metadata, root: str, agent: Optional[Agent] = None) -> None:
    """Act as head or worker, and restart after an error. Never returns.

    A bug of ours is reported at once. A failure of the cloud, which may be temporary, is reported only if it keeps the
    node from becoming a member.
    """
    lossy: Any = _Output()
    sys.stdout = sys.stderr = lossy
    threading.Thread(target=firewall.watch, args=(settings,), daemon=True).start()
    threading.Thread(target=logins.watch, daemon=True).start()
    desk = credentials.serve(settings, metadata)
    shared_memory.serve(settings, root)
    end = time.monotonic() + _PATIENCE * settings.node_timeout_s
    while True:
        try:
            agent = agent or Agent(settings, metadata, root)
            agent.log.ship(agent.stream)
            _live(agent, desk, end)
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
            may_pass = time.monotonic() < end or files.read(root + contract.ROSTER)
            if not (may_pass and isinstance(error, (OSError, AwsError))):
                failure.report(settings, agent, _DATA if agent and agent.step == _DATA else "agent", error)
                # A running head that fails later is left to its unit: jobs may run on its machine.
                if agent and agent.step == _GPUS and isinstance(error, CommandError):
                    failure.make_way(agent)
        agent = None
        time.sleep(_PAUSE_S)


def _live(agent: Agent, desk: credentials.Desk, end: float) -> None:
    """Run as head or worker. Never returns. Each imports only its own part, a third of the agent."""
    if agent.settings.metrics:
        threading.Thread(target=nfs_metrics.watch, args=(agent,), daemon=True).start()
    if agent.settings.head:
        from phalanx.node.head import Head  # here, because a worker needs none of it

        agent.step = _GPUS
        progress.begin(agent)
        try:
            _mount_data(agent, desk, end)
            Head(agent).serve()
        finally:
            agent.settled = True
    from phalanx.node import worker  # here, because a head needs none of it

    _mount_data(agent, desk, end)
    worker.serve(agent)


def _mount_data(agent: Agent, desk: credentials.Desk, end: float) -> None:
    """Mount what jobs read from S3, once in this process's life. Raises CommandError, but not on a member."""
    if agent.settings.data and not desk.mounts:
        from phalanx.node import data_mounts  # here, because few clusters have mounts

        step, agent.step = agent.step, _DATA
        mounts = data_mounts.DataMounts(agent, desk)
        mounts.begin(end, is_member=bool(files.read(agent.root + contract.ROSTER)))
        agent.step, desk.mounts = step, mounts
