"""Decide what the head does next: a pure function of what it has heard, Auto Scaling's state, and the clock.

Every decision is computed from the whole state and counts no events, so messages may come twice, late or never. Times
are seconds of one monotonic clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional, Sequence, Union

from phalanx.node.roster import COMING, Missing, Node, Roster, worker_name, worker_number
from phalanx.node.settings import ON_AWS
from phalanx.node.workers_group import worker_numbers

# Auto Scaling retries a failed launch by itself. These of its messages, which have no codes, are final:
# quotas, what the zone or the image does not support, explicit denials, disk keys, and what does not exist
# (docs/aws-behaviour.md 3.27). Other denials may pass, because IAM's changes take a while to be seen.
FINAL = (
    "current (vCPU|instance) limit|spot instance count|not supported|explicit deny|KMS|client error on launch"
    "|(image id|key pair).* not exist|accept terms|blocked|not match the arch|not eligible|tag policy"
)
# A shortage is believed after this many attempts, or after Policy.launch_s.
LAUNCH_ATTEMPTS = 3
ACK_TIMEOUT_S = 60.0
# A node that beats (node.beats) is silent after this time without one; one that never did gets time to find the head.
SILENT_S = 15.0
FIRST_BEAT_S = 60.0
# A silent node is replaced after this. It may only be short of memory or cut off for a while, and scarce.
LOST_S = 120.0
# Certificates are good for 24 hours and renewed at half.
RENEW_S = 12 * 3600.0


@dataclass(frozen=True)
class Policy:
    """What was requested: the number of nodes (with the head), the minimum, and the time until a node says hello.

    A shortage of machines is believed after `launch_s`.
    """

    cluster: str
    nodes: int
    minimum: int
    node_timeout_s: float
    launch_s: float = ON_AWS.launch_s


@dataclass(frozen=True)
class Group:
    """The workers' group when it was last read. `instances`: id → when it was first seen.

    `refusals` are the messages of failed launches, newest first, one for each attempt; `refused_since` is when the
    first of them was seen.
    """

    at: float
    instances: dict[str, float]
    refusals: tuple[str, ...] = ()
    refused_since: float = 0.0


@dataclass()
class State:
    """All that the head knows. `hellos`: id → node; `heard`: id → time; `failed`: id → reason; `acks`: id → generation.

    `beats`: address → time; `dropped`: instances that were terminated; `ended`: those that EC2 reports as ended.
    `leaving`: id → why AWS is about to take the instance back; `all_leave`: why it takes back all that train, or "".
    """

    me: Node
    started_at: float
    hellos: dict[str, Node] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    acks: dict[str, int] = field(default_factory=dict)
    beats: dict[str, float] = field(default_factory=dict)
    proven: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    leaving: dict[str, str] = field(default_factory=dict)
    all_leave: str = ""
    group: Optional[Group] = None
    roster: Optional[Roster] = None
    published_at: Optional[float] = None
    signalled: bool = False


@dataclass(frozen=True)
class Publish:
    """Publish this roster.

    `drop`: instances that will not be nodes; `lost`: those that Auto Scaling is to replace; `request`: the number of
    nodes to request, None for no change.
    """

    roster: Roster
    drop: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    request: Optional[int] = None


@dataclass(frozen=True)
class Prove:
    """Log in to these nodes over ssh."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Succeed:
    """Signal that the cluster is ready."""


@dataclass(frozen=True)
class Fail:
    """Signal that the cluster has failed, with the reason."""

    reason: str


Action = Union[Publish, Prove, Succeed, Fail]


def decide(state: State, policy: Policy, now: float) -> Optional[Action]:
    """Return the next action; None means to wait."""
    if state.roster is None:
        return None if state.signalled else _gather(state, policy, now)
    revised = _revise(state, policy, state.roster, now)
    if revised is None:
        return _conclude(state, state.roster)
    roster = revised.roster
    if not state.signalled and len(roster.nodes) < policy.minimum:
        return Fail(_verdict(len(roster.nodes), policy, [m.reason for m in roster.missing]))
    return revised


def _gather(state: State, policy: Policy, now: float) -> Optional[Action]:
    """Publish the first roster when all nodes have answered, or no more can be expected."""
    ready = [state.me, *_answered(state)]
    if len(ready) >= policy.nodes:
        return _first(policy, ready[: policy.nodes], [], ())
    late = now - state.started_at > policy.node_timeout_s
    instances = state.group.instances if state.group else {}
    silent = [i for i in instances if i not in state.hellos and i not in state.failed]
    waiting = [i for i in silent if now - instances[i] <= policy.node_timeout_s]
    failed = [i for i in state.failed if state.group is None or i in instances]
    unlaunched = max(0, policy.nodes - len(ready) - len(silent) - len(failed))
    hopeless = late or _given_up(state.group, policy, now)
    expected = len(waiting) + (0 if hopeless else unlaunched)
    reasons = [state.failed[i] for i in failed]
    reasons += [_mute(i, policy) for i in silent if i not in waiting]
    reasons += [_launch_reason(state.group, policy)] * (unlaunched if hopeless else 0)
    if len(ready) + expected < policy.minimum:
        return Fail(_verdict(len(ready), policy, reasons))
    if expected:
        return None
    dropped = tuple(i for i in instances if i in failed or i in silent)
    return _first(policy, ready, reasons, dropped)


def _answered(state: State) -> list[Node]:
    """Return the workers that said hello and still exist, ordered by address."""
    return sorted(
        (n for i, n in state.hellos.items() if i not in state.failed and not _left(state, i)),
        key=lambda n: [int(part) for part in n.address.split(".")],
    )


def _left(state: State, instance_id: str) -> bool:
    """Whether the group was read after the node was last heard, and does not contain it."""
    group = state.group
    return group is not None and instance_id not in group.instances and state.heard.get(instance_id, 0.0) < group.at


def _given_up(group: Optional[Group], policy: Policy, now: float) -> bool:
    if group is None or not group.refusals:
        return False
    is_final = any(re.search(FINAL, refusal, re.IGNORECASE) for refusal in group.refusals)
    return is_final or len(group.refusals) >= LAUNCH_ATTEMPTS or now - group.refused_since >= policy.launch_s


def _launch_reason(group: Optional[Group], policy: Policy) -> str:
    if group is not None and group.refusals:
        return group.refusals[0]
    return f"Auto Scaling launched no instance for it in {policy.node_timeout_s:.0f} s"


def _first(policy: Policy, ready: list[Node], reasons: list[str], drop: tuple[str, ...]) -> Publish:
    nodes = tuple(n._replace(name=worker_name(i), head=i == 1) for i, n in enumerate(ready, 1))
    # A person may have raised the group beyond the requested number, which limits how many can be missing.
    missing = tuple(Missing(name, reason) for name, reason in zip(_free(policy, nodes), reasons))  # noqa: B905
    roster = Roster(policy.cluster, 1, policy.nodes, policy.minimum, nodes, missing)
    return Publish(roster, drop, request=len(nodes) if reasons else None)


def _revise(state: State, policy: Policy, roster: Roster, now: float) -> Optional[Publish]:
    """Return the next generation if the members changed, certificates must be renewed, or this head is new."""
    if state.group is None and roster.requested > 1:
        return None
    gone = {n.name: why for n in roster.members if (why := _why_gone(state, policy, roster, n, now))}
    kept = [n for n in roster.members if n.name not in gone]
    left = [n for n in roster.members if n.name in gone]
    revoked = (*roster.revoked, *(key for n in left for key in (n.host_key, n.user_key)))
    members = sorted([*kept, *_join(state, policy, kept, revoked)], key=lambda n: worker_number(n.name))
    silent = tuple(n for n in members if _silent(state, roster, n, now))
    nodes = tuple(n for n in members if n not in silent)
    lost = tuple(n.instance_id for n in left if _is_lost(state, n, gone[n.name], now))
    strays = _strays(state, policy, {n.instance_id: gone[n.name] for n in left}, members, now)
    drop = tuple(i for i in strays if i not in lost)
    reasons = {m.name: m.reason for m in roster.missing} | gone
    missing = _missing(state, policy, reasons, members, [strays[i] for i in drop], now)
    # A head that does not train is in no Capacity Block.
    why = {n.name: state.leaving.get(n.instance_id, state.all_leave if n.slots else "") for n in nodes}
    leaving = tuple(Missing(name, reason) for name, reason in why.items() if reason)
    due = state.published_at is None or now - state.published_at > RENEW_S
    rescaled = policy.nodes != roster.requested
    members_now = {"nodes": nodes, "silent": silent, "missing": missing, "leaving": leaving}
    if not (due or drop or rescaled) and all(getattr(roster, name) == now for name, now in members_now.items()):
        return None
    changes = {"requested": policy.nodes, "revoked": revoked, **members_now}
    following = roster._replace(generation=roster.generation + 1, **changes)
    return Publish(following, drop, lost, policy.nodes if rescaled else None)


def _why_gone(state: State, policy: Policy, roster: Roster, node: Node, now: float) -> str:
    """Return why a node is no longer a member; "" while it is."""
    node_id = node.instance_id
    if node.head:
        return "" if node_id == state.me.instance_id else f"{node_id} was replaced as head"
    if worker_number(node.name) > policy.nodes:
        return f"the cluster was scaled to {policy.nodes}"
    if node_id in state.failed:
        return state.failed[node_id]
    if _left(state, node_id):
        return f"{node_id} was lost: its machine is no longer in the group of nodes"
    mute = state.published_at is not None and now - state.published_at > ACK_TIMEOUT_S
    if mute and not state.signalled and state.acks.get(node_id, 0) < roster.generation:
        return f"{node_id} did not acknowledge generation {roster.generation} in {ACK_TIMEOUT_S:.0f} s"
    return _why_dead(state, node, now)


def _why_dead(state: State, node: Node, now: float) -> str:
    """Return why Auto Scaling is to replace a worker; "" while it may live."""
    if node.instance_id in state.ended:
        return f"{node.instance_id} was lost: its machine has ended"
    last = max(_known_since(state, node), state.beats.get(node.address, 0.0))
    return f"{node.instance_id} was lost: no sign of life for {LOST_S:.0f} s" if now - last > LOST_S else ""


def _is_lost(state: State, node: Node, why: str, now: float) -> bool:
    """Whether Auto Scaling is to replace a worker. One that was never usable would fail again and again."""
    broken = node.instance_id in state.proven and why == state.failed.get(node.instance_id)
    return broken or why == _why_dead(state, node, now)


def _silent(state: State, roster: Roster, node: Node, now: float) -> bool:
    """Whether a worker of a ready cluster has stopped beating. It stays silent until its next beat."""
    if node.head or not state.signalled:
        return False
    known, beat = _known_since(state, node), state.beats.get(node.address, 0.0)
    return now - beat > SILENT_S if beat > known else node in roster.silent or now - known > FIRST_BEAT_S


def _known_since(state: State, node: Node) -> float:
    """Return when this head knew the node first. An earlier beat came from another machine at its address."""
    return max(state.heard.get(node.instance_id, 0.0), state.started_at)


def _strays(state: State, policy: Policy, left: dict[str, str], nodes: list[Node], now: float) -> dict[str, str]:
    """Return id → reason of the group's instances that will not be nodes. Each is terminated once."""
    members = {n.instance_id for n in nodes} | state.dropped
    found = {}
    for i, since in (state.group.instances if state.group else {}).items():
        late = i not in state.hellos and now - since > policy.node_timeout_s
        why = state.failed.get(i) or left.get(i) or (_mute(i, policy) if late else "")
        if why and i not in members:
            found[i] = why
    return found


def _mute(instance_id: str, policy: Policy) -> str:
    return f"{instance_id} never said hello in {policy.node_timeout_s:.0f} s"


def _missing(
    state: State, policy: Policy, known: dict[str, str], nodes: list[Node], new: list[str], now: float
) -> tuple[Missing, ...]:
    """Return the names without a node, with the newest reasons first, then Auto Scaling's, then known ones."""
    names = _free(policy, nodes)
    last = state.group.refusals[0] if state.group and _given_up(state.group, policy, now) else ""
    reasons = [*new, *[last] * len(names)]
    return tuple(Missing(n, why or known.get(n, COMING)) for n, why in zip(names, reasons))  # noqa: B905


def _free(policy: Policy, nodes: Sequence[Node]) -> list[str]:
    """Return the workers' names that none of these nodes has, from below. The head's is never free."""
    taken = {n.name for n in nodes}
    return [name for name in map(worker_name, worker_numbers(policy.nodes)) if name not in taken]


def _join(state: State, policy: Policy, kept: list[Node], revoked: tuple[str, ...]) -> list[Node]:
    """Return new members with free names: a new head is worker 1, and the others fill the gaps from below.

    A node that left does not return, because its keys are revoked.
    """
    known = {n.instance_id for n in kept}
    heads = [] if state.me.instance_id in known else [state.me._replace(name=worker_name(1), head=True)]
    free = _free(policy, kept)
    new = [n for n in _answered(state) if n.instance_id not in known and n.host_key not in revoked]
    return heads + [n._replace(name=name, head=False) for name, n in zip(free, new)]  # noqa: B905 (Python 3.9)


def _conclude(state: State, roster: Roster) -> Optional[Action]:
    """Prove the nodes once all have acknowledged, and signal success once all are proven."""
    unproven = tuple(n for n in roster.nodes if n.instance_id not in state.proven)
    # The head reaches them by what it has written itself, which a full disk delays.
    if unproven and all(state.acks.get(n.instance_id, 0) >= roster.generation for n in (state.me, *unproven)):
        return Prove(unproven)
    return Succeed() if not unproven and not state.signalled else None


def _verdict(ready: int, policy: Policy, reasons: list[str]) -> str:
    """Return one message with each reason once."""
    lines = "; ".join(dict.fromkeys(reasons)) or "no reason known"
    return f"{ready} of {policy.nodes} nodes, at least {policy.minimum} are needed: {lines}"
