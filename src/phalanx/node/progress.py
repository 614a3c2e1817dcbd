"""Report the head's progress during creation in a table item, whose changes show that the head is alive."""

from __future__ import annotations

import json
import threading
import time

from phalanx.node.agent import Agent
from phalanx.node.aws_client import AwsError

_EVERY_S = 2
_ORDER = threading.Lock()
"""Keeps writes in the order of reads, so that an earlier step never replaces a later one."""


def begin(agent: Agent) -> None:
    """Write the item `progress` every 2 s in a thread, until the agent is `settled` or this process ends."""
    threading.Thread(target=_work, args=(agent,), daemon=True).start()


def report(agent: Agent) -> None:
    """Write the item now."""
    me = agent.identity.instance_id
    with _ORDER:
        try:
            # Earlier heads stay in the item with their last steps, for a reader that polls seldom.
            steps = {head: step for head, step in agent.table.get("progress").items() if head[:2] == "i-"}
            steps.update({me: agent.step, "at": int(time.time()), "head": me, "answered": json.dumps(agent.answered)})
            agent.table.note("progress", **steps)
        except AwsError as error:
            agent.log.say(f"the progress can't be reported: {error}")


def _work(agent: Agent) -> None:
    while not agent.settled:
        report(agent)
        time.sleep(_EVERY_S)
