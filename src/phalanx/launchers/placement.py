"""Distributes a job's processes over the nodes, in the same way for every launcher."""

from __future__ import annotations

from typing import Dict, Iterator, Mapping, Optional, Sequence, Tuple

from phalanx.node.roster import Node, Roster
from phalanx.runner.process import PreparedJob, RefusedError


def place(
    job: PreparedJob, roster: Roster, default_per_node: Optional[int] = None, evenly: bool = False
) -> Dict[str, int]:
    """Map node names to numbers of processes, in the roster's order, without nodes that get none. Raises RefusedError.

    -n fills the nodes one after another, each up to -N (or its slots), or `evenly`; without -n every node is filled.
    `default_per_node` replaces a missing -N when -n is missing, too.
    """
    if job.nodes_min is not None:
        raise RefusedError(
            f"the launcher {job.launcher} can't continue with fewer nodes than it started with.\n"
            "--nodes MIN:MAX requires --launcher torchrun; --restarts restarts any job on the remaining nodes.",
            code="fixed-size",
        )
    per_node = job.per_node or (default_per_node if job.processes is None else None)
    room = {node.name: _room(node, per_node) for node in roster.nodes}
    if job.processes is None:
        return room
    _require_room(job, room)
    return _deal(job.processes, room) if evenly else _fill(job.processes, room)


def spread(placed: Mapping[str, int]) -> Iterator[Tuple[str, int]]:
    """Yield each process's node and its number there: the first on every node, then the second, and so on."""
    for local in range(max(placed.values(), default=0)):
        yield from ((node, local) for node, count in placed.items() if local < count)


def _room(node: Node, per_node: Optional[int]) -> int:
    if per_node is None:
        return node.slots
    if per_node > node.slots:
        raise RefusedError(
            f"{per_node} processes per node were requested; {node.name} has {_slots(node.slots)}.\n"
            "Request fewer with -N, or set `slots:` in phalanx.yaml.",
            code="too-few-slots",
        )
    return per_node


def _require_room(job: PreparedJob, room: Dict[str, int]) -> None:
    if (job.processes or 0) > sum(room.values()):
        raise RefusedError(_too_many(job, list(room.values())), code="too-few-slots")


def _deal(left: int, room: Dict[str, int]) -> Dict[str, int]:
    dealt = [node for node, _ in spread(room)][:left]
    return {node: dealt.count(node) for node in room if node in dealt}


def _fill(left: int, room: Dict[str, int]) -> Dict[str, int]:
    placed = {}
    for name, most in room.items():
        placed[name] = min(most, left)
        left -= placed[name]
    return {name: count for name, count in placed.items() if count}


def _too_many(job: PreparedJob, room: Sequence[int]) -> str:
    nodes = f"{len(room)} node{'s' if len(room) > 1 else ''}"
    limit = f" at {job.per_node} per node (-N)" if job.per_node else ""
    return (
        f"{job.processes} processes were requested; {nodes}{limit} have room for {sum(room)}.\n"
        "Request fewer with -n, or set `nodes:` or `slots:` in phalanx.yaml."
    )


def _slots(count: int) -> str:
    return f"{count} slot" + ("" if count == 1 else "s")
