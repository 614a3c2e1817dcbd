"""A roster of two nodes and a missing one, and nodes with chosen fields."""

from __future__ import annotations

from phalanx.node.roster import Missing, Node, Roster, worker_name


def a_node(number: int, **changes) -> Node:
    node = Node(
        name=worker_name(number),
        instance_id=f"i-{number}",
        address=f"10.0.1.{10 + number}",
        hostname=f"ip-10-0-1-{10 + number}",
        zone="us-east-1a",
        type="c5.large",
        gpus=0,
        slots=2,
        head=number == 1,
        host_key=f"ssh-ed25519 AAAAhost{number}",
        user_key=f"ssh-ed25519 AAAAuser{number}",
    )
    return node._replace(**changes)


ROSTER = Roster(
    cluster="demo",
    generation=3,
    requested=3,
    minimum=1,
    nodes=(a_node(1), a_node(2)),
    missing=(Missing("deeplearning-worker3", "no capacity"),),
    revoked=("ssh-ed25519 AAAAOLD",),
)
