"""A head's view of its cluster, for tests of its decisions."""

from __future__ import annotations

from rosters import a_node

from phalanx.node.decision import Group, Policy, Publish, State, decide
from phalanx.node.roster import Node
from phalanx.node.settings import ON_AWS

TIMEOUT_S = 600.0
ALWAYS = float("inf")
LAUNCH_S = ON_AWS.launch_s
NO_CAPACITY = "We currently do not have sufficient c5.large capacity"


def machine(number: int) -> Node:
    """Make a node as in its hello, without a name."""
    return a_node(number, name="")


def policy(nodes: int = 4, minimum: int = 2) -> Policy:
    return Policy("demo", nodes, minimum, TIMEOUT_S)


def state(*answered: int, at: float = 1.0) -> State:
    made = State(machine(1), 0.0)
    for number in answered:
        hear(made, number, at)
    return made


def hear(made: State, number: int, at: float = 1.0) -> None:
    made.hellos[f"i-{number}"] = machine(number)._replace(head=False)
    made.heard[f"i-{number}"] = at
    made.beats[machine(number).address] = ALWAYS


def group(*numbers: int, at: float = 2.0, seen: float = 0.0, refusals: int = 0, since: float = 2.0) -> Group:
    return Group(at, {f"i-{n}": seen for n in numbers}, (NO_CAPACITY,) * refusals, since)


def publish(made: State, wish: Policy, now: float) -> Publish:
    """Decide, expect a roster, and apply it as the head does."""
    action = decide(made, wish, now)
    assert isinstance(action, Publish)
    made.roster, made.published_at = action.roster, now
    made.acks[made.me.instance_id] = action.roster.generation
    return action


def all_acknowledge(made: State) -> None:
    assert made.roster is not None
    made.acks.update({n.instance_id: made.roster.generation for n in made.roster.nodes})


def ready(nodes: int = 3) -> State:
    """Make a cluster that signalled success after 10 seconds."""
    made = state(*range(2, nodes + 1))
    publish(made, policy(nodes, 1), 10)
    all_acknowledge(made)
    made.proven = {n.instance_id for n in made.roster.nodes} if made.roster else set()
    made.signalled = True
    made.group = group(*range(2, nodes + 1), at=11)
    return made


def names(action: Publish) -> dict[str, str]:
    return {n.instance_id: n.name for n in action.roster.nodes}
