"""The worker's loop: say hello until the roster names this node, and apply the newest generation."""

from __future__ import annotations

import random
import socket
import threading
import time
from dataclasses import asdict
from typing import Any, Optional

from phalanx.node import beats, contract, validate
from phalanx.node.agent import Agent
from phalanx.node.roster import Node

# Hellos may be lost, and a head that dies forgets them.
_HELLO_AGAIN_S = 30.0
_POLL_MOST_S = 5.0
_POLL_LEAST_S = 0.1
# A partition of the table answers 6,000 such reads a second (docs/aws-behaviour.md 8); we use a third of that.
_READS_PER_S = 2000
_POLL_SETTLED_S = 15.0
# Beats of 3 s each without an answer: a machine that only reboots is usually back by then.
_GONE_AFTER = 30
_CONNECT_S = 5
# How many workers try to terminate it at a time: Auto Scaling limits calls (docs/aws-behaviour.md 3.20).
_AT_ONCE = 8


def serve(agent: Agent) -> None:
    """Run the worker's loop. Never returns."""
    me = agent.describe()
    began = hello_at = time.monotonic()
    hello(agent, me)
    applied: Optional[int] = None
    beat = beats.beat()
    while True:
        known = agent.table.get("generation", consistent=False)
        generation = known.get("number", 0)
        beat.aim(known.get("head_address", ""))
        if generation == applied:
            replace_lost_head(agent, known, beat)
        elif generation and follow(agent, me):
            beat.generation = applied = generation
        now = time.monotonic()
        if applied is None and now - hello_at > _HELLO_AGAIN_S:
            hello_at = now
            hello(agent, me)
        # The answer to a beat ends the pause when there is a new generation; without it, the poll finds it.
        settled = beat.heard or applied is not None
        if beat.changed.wait(poll_pause_s(now - began, agent.workers, settled)):
            # All workers are notified at the same moment.
            time.sleep(random.uniform(0, agent.workers / _READS_PER_S))
        beat.changed.clear()


def replace_lost_head(agent: Agent, known: dict[str, Any], beat: beats.Beat) -> None:
    """Terminate a head that is gone, so that its group launches another. EC2 takes minutes to notice (3.16).

    This node stands in the newest roster: a head that lives and does not hear it would have taken it out long ago, so
    that it is not this node which is cut off. A machine whose network answers in any way is left to EC2.
    """
    if beat.unanswered < _GONE_AFTER or random.random() * agent.workers > _AT_ONCE or _answers(beat.head):
        return
    beat.unanswered = 0
    if agent.table.get("generation") == known:
        agent.log.say(f"the head {known['head']} at {beat.head} is gone: it is replaced")
        # In a thread: a second caller is refused repeatedly, and must learn of the new head meanwhile.
        threading.Thread(target=agent.fleet.terminate, args=(known["head"], True), daemon=True).start()


def _answers(address: str) -> bool:
    try:
        socket.create_connection((address, 22), _CONNECT_S).close()
    except ConnectionRefusedError:
        pass
    except OSError:
        return False
    return True


def poll_pause_s(elapsed_s: float, workers: int, settled: bool) -> float:
    """Return the pause before the next poll: a third of the wait so far, longer the more workers there are.

    The head announces generations by itself; this is for workers that it can't reach, or that don't know it yet.
    """
    least = max(_POLL_LEAST_S, workers / _READS_PER_S)
    pause = _POLL_SETTLED_S if settled else min(max(least, elapsed_s / 3), max(least, _POLL_MOST_S))
    return pause * random.uniform(0.7, 1.3)


def hello(agent: Agent, me: Node) -> None:
    """Introduce this node to the head."""
    content = asdict(me)
    for name in ("name", "head", "instance_id"):
        del content[name]
    agent.report("hello", **content)


def follow(agent: Agent, me: Node) -> bool:
    """Apply the newest roster and acknowledge it; return False if it is incomplete or does not name this node."""
    item = agent.table.get("roster")
    papers = agent.table.get(f"node#{me.instance_id}")
    if not item or papers.get("generation", -1) < item["generation"]:
        return False
    roster = validate.roster(item["roster"], validate.NETWORK)
    if roster.find(me.instance_id) is None:
        return False
    signed = contract.Papers(
        validate.key_line(papers["authority"]),
        validate.certificate_line(papers["host_certificate"]),
        validate.certificate_line(papers["user_certificate"]),
    )
    contract.apply(roster, me.instance_id, agent.machine(), signed, agent.root)
    agent.workers = len(roster.nodes) - 1
    agent.report("ack", generation=roster.generation)
    agent.log.say(f"generation {roster.generation}: {len(roster.nodes)} nodes")
    return True
