"""The membership of a cluster: the nodes that answered, and the missing ones with reasons. Pure data."""

from __future__ import annotations

import json
import zlib
from typing import NamedTuple, Optional

FORMAT = 1
"""The number of the roster's format."""
MASTER = "deeplearning-master"
COMING = "it is being launched"
"""The reason for a node that has only just been requested."""
_WORKER = "deeplearning-worker"


class Node(NamedTuple):
    """A machine that answered; its keys are OpenSSH public key lines.

    `slots` is how many processes it runs: 0 on a head that does not train.
    """

    name: str
    instance_id: str
    address: str
    hostname: str
    zone: str
    type: str
    gpus: int
    slots: int
    head: bool
    host_key: str
    user_key: str


class Missing(NamedTuple):
    """A node that was requested and is missing or about to be, with the cloud's own reason."""

    name: str
    reason: str


class Roster(NamedTuple):
    """One generation of the membership. `nodes` begins with the head; `revoked`: public keys of nodes that left.

    `silent`: nodes that have stopped beating. They keep names and keys until they beat again or are replaced, but no
    job uses them. `leaving`: nodes that AWS is about to take back, with the reason: jobs that run there go on, but no
    job begins there.
    """

    cluster: str
    generation: int
    requested: int
    minimum: int
    nodes: tuple[Node, ...]
    missing: tuple[Missing, ...] = ()
    revoked: tuple[str, ...] = ()
    silent: tuple[Node, ...] = ()
    leaving: tuple[Missing, ...] = ()

    @property
    def head(self) -> Node:
        return next(node for node in self.nodes if node.head)

    @property
    def workers(self) -> tuple[Node, ...]:
        """The nodes on which jobs begin: all, but for those that are leaving and a head that does not train."""
        leaving = {one.name for one in self.leaving}
        return tuple(n for n in self.nodes if n.slots and n.name not in leaving)

    @property
    def members(self) -> tuple[Node, ...]:
        """All nodes with valid keys, the silent ones included."""
        return self.nodes + self.silent

    def find(self, key: str) -> Optional[Node]:
        """Return the node with this name, instance id, address or host name; None if there is none."""
        if key == MASTER:
            return self.head
        return next((n for n in self.nodes if key in (n.name, n.instance_id, n.address, n.hostname)), None)

    def to_json(self) -> str:
        """Return compact JSON, the same text for the same roster; node.validate parses it."""
        content = {"format": FORMAT, **self._asdict()}
        for key in ("nodes", "missing", "silent", "leaving"):
            content[key] = [one._asdict() for one in content[key]]
        return json.dumps(content, separators=(",", ":"))

    def packed(self) -> bytes:
        """Return the JSON compressed, for the table, whose items have at most 400 KB (docs/aws-behaviour.md 8)."""
        return zlib.compress(self.to_json().encode(), 9)


def worker_name(number: int) -> str:
    """Return the name of the worker with this number, from 1; number 1 is the head."""
    return f"{_WORKER}{number}"


def worker_number(name: str) -> int:
    """Return the number in a worker's name, for sorting."""
    return int(name[len(_WORKER) :])
