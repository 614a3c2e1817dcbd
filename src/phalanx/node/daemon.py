"""The agent that stays: started by systemd where that runs the machine, else as a daemon of its own."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Optional

from phalanx.node import contract, credentials, files, firewall
from phalanx.node.agent import HOME, Agent
from phalanx.node.aws_client import AwsError
from phalanx.node.command import run
from phalanx.node.metadata import Metadata
from phalanx.node.settings import Settings

_UNIT = f"""[Unit]
Description=phalanx node agent
After=network-online.target remote-fs.target
Wants=network-online.target

[Service]
ExecStart={sys.executable} -IS {HOME}/agent serve
Restart=on-failure
RestartSec=5
StandardOutput=journal+console
"""


# Before another try after an error.
_PAUSE_S = 5
_TRIES = 2


def start(agent: Agent) -> None:
    """Leave the agent running and return."""
    root = agent.root
    files.enable("phalanx", _UNIT, "multi-user", root)
    if os.path.isdir(f"{root}/run/systemd/system"):
        run(["systemctl", "daemon-reload"], 60)
        run(["systemctl", "start", "phalanx"], 60)
    elif detach(f"{root}{HOME}/agent.log"):
        # The daemon is a copy of this process, which has imported and asked for all that it needs. It sends the boot
        # log, too: a stream each would cost the node two more calls.
        serve(agent.settings, agent.metadata, root, agent)
    else:
        agent.log.lines.clear()


def detach(log: str) -> bool:
    """Fork twice; True in the daemon, which has no terminal, no parent and `log` as its output."""
    if os.fork():
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    with open(os.devnull) as nothing, open(log, "a") as output:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    return True


def serve(settings: Settings, metadata: Metadata, root: str, agent: Optional[Agent] = None) -> None:
    """Be head or worker; begin again after an error, for the cluster has nobody else. Never returns.

    A mistake of ours is told at once, for whoever waits for this node; the cloud's trouble, which may pass, only when
    it keeps a node from becoming a member.
    """
    threading.Thread(target=firewall.watch, args=(settings,), daemon=True).start()
    credentials.serve(settings, metadata)
    errors = 0
    while True:
        try:
            agent = agent or Agent(settings, metadata, root)
            agent.log.ship(agent.stream)
            _live(agent)
        except Exception as error:
            import traceback

            from phalanx.node import failure

            traceback.print_exc()
            errors += 1
            may_pass = errors < _TRIES or files.read(root + contract.ROSTER)
            if not (may_pass and isinstance(error, (OSError, AwsError))):
                failure.report(settings, agent, "agent", error)
        agent = None
        time.sleep(_PAUSE_S)


def _live(agent: Agent) -> None:
    """Never returns. Neither compiles what only the other needs: a third of the agent."""
    if agent.settings.head:
        from phalanx.node.head import Head

        Head(agent).serve()
    from phalanx.node import worker

    worker.serve(agent)
