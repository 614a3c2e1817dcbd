"""The worker's loop: say hello until the roster names this node, and apply the newest generation."""

from __future__ import annotations

import random
import socket
import threading
import time
from typing import Any

from phalanx.node import activity, beats, contract, disk, files, mount, notice, validate
from phalanx.node.agent import Agent
from phalanx.node.command import CommandError
from phalanx.node.roster import Node
from phalanx.node.services import ROSTERS

_POLL_MOST_S = 5.0
_POLL_LEAST_S = 0.1
# A partition of the table answers 6,000 such reads a second (docs/aws-behaviour.md 8); we use a third of that.
_READS_PER_S = 2000
# Of a partition's 3,000 read units a second, and of what a node adds to the compressed roster.
_UNITS_PER_S = 2500
_UNITS_PER_NODE = 0.012
_POLL_SETTLED_S = 15.0
# A head that answers beats announces the first roster by itself; until then, the table is not read.
_POLL_HEARD_S = 600.0
# Beats of 3 s each without an answer: a machine that only reboots is usually back by then.
_GONE_AFTER = 30
_CONNECT_S = 5
# How long a use of this node counts, and how often to look.
_USE_S = 10.0
_LOOK_S = 5.0
# How many workers try to terminate it at a time: Auto Scaling limits calls (docs/aws-behaviour.md 3.20).
_AT_ONCE = 8


def serve(agent: Agent) -> None:
    """Run the worker's loop. Never returns."""
    beat = beats.beat()
    threading.Thread(target=_watch_use, args=(beat, mount.watch(agent.settings.shared)), daemon=True).start()
    threading.Thread(target=notice.watch, args=(agent,), daemon=True).start()
    worker = Worker(agent, beat)
    while True:
        # The answer to a beat ends the pause when there is a new generation; without it, the poll finds it.
        if beat.changed.wait(worker.turn()):
            time.sleep(worker.spread_s())
        beat.changed.clear()


def _watch_use(beat: beats.Beat, shared: mount.Watch) -> None:
    """Say in each beat whether somebody uses this node, so that it is not idle (node.limits), and what it lacks.

    That is room on its disk, and the shared directory.
    """
    while True:
        in_use = time.time() - activity.last_use() < _USE_S
        lacks = [beats.FULL] * disk.is_full() + [beats.HUNG] * shared.is_silent
        beat.content = b" ".join([beats.IN_USE] * in_use + lacks)
        time.sleep(_LOOK_S)


class Worker:
    """A worker's membership: what it has said, and the generation that it has applied (0: none)."""

    def __init__(self, agent: Agent, beat: beats.Beat) -> None:
        self.agent, self.beat = agent, beat
        self.me = agent.describe()
        self.applied = 0
        self._notice = ""
        self._refused = ""  # why the newest roster can't be followed
        self._began = self._hello_at = time.monotonic()
        hello(agent, self.me)
        beat.aim(agent.head_address)

    def turn(self) -> float:
        """Do what is due, and return the pause until the next turn in s."""
        beat = self.beat
        if beat.heard and beat.announced > self.applied:
            self._follow()
        elif self.applied or beat.unanswered or not beat.head:
            self._poll()
        now = time.monotonic()
        is_due = now - self._hello_at > self.agent.settings.patience.hello_s
        if is_due and not self.applied and (beat.unknown or not beat.heard):
            self._hello_at = now
            hello(self.agent, self.me)
        settled_s = _POLL_SETTLED_S if self.applied else _POLL_HEARD_S if beat.heard and not beat.unknown else 0.0
        return poll_pause_s(now - self._began, self.agent.nodes, settled_s)

    def spread_s(self) -> float:
        """Return a random pause after the head's announcement, which reaches all workers at the same moment."""
        nodes = self.agent.nodes
        return random.uniform(0, nodes * (1 + _UNITS_PER_NODE * nodes) / (_UNITS_PER_S * len(ROSTERS)))

    def _poll(self) -> None:
        """Read from the table which node is the head, and the newest generation."""
        known = self.agent.table.get("generation", consistent=False)
        head = known.get("head_address", "")
        head = head and validate.address(head, self.agent.settings.networks)
        if head and self.beat.head not in ("", head) and self.agent.settings.file_system == mount.HEAD:
            threading.Thread(target=_follow_storage, args=(self.agent, head), daemon=True).start()
        self.beat.aim(head)
        notice, self._notice = self._notice, validate.reason(known.get("notice", ""))
        if self._notice not in ("", notice):
            activity.show(self._notice)
        if known.get("number", 0) != self.applied:
            self._follow()
        elif self.applied:
            replace_lost_head(self.agent, known, self.beat)

    def _follow(self) -> None:
        """Follow the newest roster; one that the table does not show yet is read again after the next beat."""
        refused, self._refused = self._refused, ""
        try:
            generation = follow(self.agent, self.me, self.applied)
        except (validate.Newer, OSError) as error:
            # Of a node that is no member yet, a full disk is why it fails.
            if isinstance(error, OSError) and not (files.is_full(error) and self.applied):
                raise
            self._refused = str(error)
            if refused != self._refused:
                self.agent.log.say(f"{error}; generation {self.applied} stays")
            return
        if generation:
            self.beat.generation = self.applied = generation


def _follow_storage(agent: Agent, head_address: str) -> None:
    """Mount the shared directory of a new head; its predecessor's has ended with it."""
    agent.head_address = head_address
    settings = agent.settings
    try:
        source = agent.shared_from(head_address)
        mount.follow(source, settings.shared, agent.job_uid(), settings.node_timeout_s, agent.log.say)
    except CommandError as error:
        agent.log.say(f"the shared directory of the new head can't be mounted: {error}")


def replace_lost_head(agent: Agent, known: dict[str, Any], beat: beats.Beat) -> None:
    """Terminate a head that is gone, so that its group launches another. EC2 takes minutes to notice (3.16).

    This node stands in the newest roster: a head that lives and does not hear it would have taken it out long ago, so
    that it is not this node which is cut off. A machine whose network answers in any way is left to EC2.
    """
    if beat.unanswered < _GONE_AFTER or random.random() * agent.nodes > _AT_ONCE or _answers(beat.head):
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


def poll_pause_s(elapsed_s: float, nodes: int, settled_s: float) -> float:
    """Return the pause before the next poll: a third of the wait so far, longer the more nodes there are.

    The head announces generations by itself; this is for workers that it can't reach, or that don't know it yet. For
    the others it is `settled_s`, unless that is 0.
    """
    least = max(_POLL_LEAST_S, nodes / _READS_PER_S)
    pause = settled_s or min(max(least, elapsed_s / 3), max(least, _POLL_MOST_S))
    return pause * random.uniform(0.7, 1.3)


def hello(agent: Agent, me: Node) -> None:
    """Introduce this node to the head."""
    content = me._asdict()
    for name in ("name", "head", "instance_id"):
        del content[name]
    agent.report("hello", **content)


def follow(agent: Agent, me: Node, applied: int = 0) -> int:
    """Apply the newest roster and acknowledge it; return its generation.

    Return 0 if it is incomplete or stale in the table, does not name this node, or was `applied` already.
    """
    item, papers = agent.table.get_together(random.choice(ROSTERS), f"node#{me.instance_id}")
    if not item or item["generation"] == applied or papers.get("generation") != item["generation"]:
        return 0
    roster = validate.roster(item["roster"], agent.settings.networks)
    if roster.find(me.instance_id) is None:
        return 0
    signed = contract.Papers(
        validate.key_line(papers["authority"]),
        validate.certificate_line(papers["host_certificate"]),
        validate.certificate_line(papers["user_certificate"]),
    )
    contract.apply(roster, me.instance_id, agent.machine(), signed, agent.root)
    agent.nodes = len(roster.nodes)
    agent.report("ack", generation=roster.generation)
    agent.log.say(f"generation {roster.generation}: {len(roster.nodes)} nodes")
    return roster.generation
