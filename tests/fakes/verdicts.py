"""The sentences by which commands report a proof, in one place: tests ask for the proof."""

from __future__ import annotations


def is_proven(said: str, nodes: int = 0) -> bool:
    """Whether a command reports that no process of a job is left, on so many nodes (0: on any)."""
    return f"no process of it is left{f' on {nodes} nodes' if nodes else ''}" in said


def is_gone(said: str) -> bool:
    """Whether a command reports that nothing of a cluster is left."""
    return "nothing of it is left" in said
