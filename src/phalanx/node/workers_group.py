"""How many nodes a group of workers makes, and the other way round: the head is in a group of its own.

Auto Scaling, EMR, the stack's parameter `Workers` and the agent's setting of that name count without the head.
Everything else counts nodes, and every conversion is one of these.
"""

from __future__ import annotations


def workers_of(nodes: int) -> int:
    """Return how many machines are in the workers' group of a cluster with this many nodes; a stopped one has 0."""
    return max(0, nodes - 1)


def nodes_of(workers: int) -> int:
    """Return how many nodes a workers' group of this many machines makes with the head."""
    return workers + 1


def worker_numbers(nodes: int) -> range:
    """Return the numbers in the names of the workers' group; number 1 is the head."""
    return range(2, nodes + 1)
