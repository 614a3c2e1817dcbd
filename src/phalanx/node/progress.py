"""How far the head is while its cluster begins, for whoever waits for it; that the item changes tells that it lives."""

from __future__ import annotations

import json
import threading
import time

from phalanx.node.agent import Agent
from phalanx.node.aws_client import AwsError

_EVERY_S = 2
_ORDER = threading.Lock()
"""What was read first is also written first: an earlier step never stands in place of a later one."""


def begin(agent: Agent) -> None:
    """Write the item `progress` each 2 s, from a thread, until the agent is `settled` or this process ends."""
    threading.Thread(target=_work, args=(agent,), daemon=True).start()


def tell(agent: Agent) -> None:
    """Write it now."""
    me = agent.identity.instance_id
    with _ORDER:
        try:
            # The heads before this one stay in the item with their last steps: who asks seldom still learns them.
            said = {head: step for head, step in agent.table.get("progress").items() if head[:2] == "i-"}
            said.update({me: agent.step, "at": int(time.time()), "head": me, "answered": json.dumps(agent.answered)})
            agent.table.tell("progress", **said)
        except AwsError as error:
            agent.log.say(f"the progress can't be reported: {error}")


def _work(agent: Agent) -> None:
    while not agent.settled:
        tell(agent)
        time.sleep(_EVERY_S)
