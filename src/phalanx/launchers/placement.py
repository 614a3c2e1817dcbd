"""How many of a job's processes go to which node: the same for every launcher."""

from __future__ import annotations

from typing import Dict, Iterator, Mapping, Optional, Sequence, Tuple

from phalanx.node.roster import Node, Roster
from phalanx.runner.process import JobDescription, RefusedError


def place(
    job: JobDescription, roster: Roster, default_per_node: Optional[int] = None, evenly: bool = False
) -> Dict[str, int]:
    """Node name → number of processes, in the roster's order; nodes that get none are left out.

    -n fills the nodes one by one, each up to -N (or its slots), or `evenly`; without -n every node gets its share.
    `default_per_node` stands in for a missing -N when -n is missing too. Raises RefusedError.
    """
    if job.nodes_min is not None:
        raise RefusedError(
            f"the launcher {job.launcher} can't go on with fewer nodes than it began with.\n"
            "--nodes MIN:MAX is for --launcher torchrun; --restarts starts any job again on the nodes that are left."
        )
    per_node = job.per_node or (default_per_node if job.processes is None else None)
    room = {node.name: _room(node, per_node) for node in roster.nodes}
    if job.processes is None:
        return room
    _require_room(job, room)
    return _deal(job.processes, room) if evenly else _fill(job.processes, room)


def spread(placed: Mapping[str, int]) -> Iterator[Tuple[str, int]]:
    """Each process's node and its number there: first one on every node, then the second ones, and so on."""
    for local in range(max(placed.values(), default=0)):
        yield from ((node, local) for node, count in placed.items() if local < count)


def _room(node: Node, per_node: Optional[int]) -> int:
    if per_node is None:
        return node.slots
    if per_node > node.slots:
        raise RefusedError(
            f"{per_node} processes per node were asked for; {node.name} has {_slots(node.slots)}.\n"
            "Ask for fewer with -N, or set `slots:` in phalanx.yaml."
        )
    return per_node


def _require_room(job: JobDescription, room: Dict[str, int]) -> None:
    if (job.processes or 0) > sum(room.values()):
        raise RefusedError(_too_many(job, list(room.values())))


def _deal(left: int, room: Dict[str, int]) -> Dict[str, int]:
    dealt = [node for node, _ in spread(room)][:left]
    return {node: dealt.count(node) for node in room if node in dealt}


def _fill(left: int, room: Dict[str, int]) -> Dict[str, int]:
    placed = {}
    for name, most in room.items():
        placed[name] = min(most, left)
        left -= placed[name]
    return {name: count for name, count in placed.items() if count}


def _too_many(job: JobDescription, room: Sequence[int]) -> str:
    on = f"{len(room)} node{'s' if len(room) > 1 else ''}"
    limit = f" at {job.per_node} per node (-N)" if job.per_node else ""
    return (
        f"{job.processes} processes were asked for; {on}{limit} have room for {sum(room)}.\n"
        "Ask for fewer with -n, or set `nodes:` or `slots:` in phalanx.yaml."
    )


def _slots(count: int) -> str:
    return f"{count} slot" + ("" if count == 1 else "s")
