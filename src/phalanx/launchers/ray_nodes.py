"""`python3 ray_nodes.py N`: ends as soon as the Ray cluster of RAY_ADDRESS has N nodes.

A file of its own in the job's directory, because it runs with the Python that has Ray.
"""

from __future__ import annotations

import importlib
import os
import sys
import time

_WITHIN_S = 120.0
_LOOK_EVERY_S = 0.2


def main() -> None:
    """Ray itself would give up on a head that is not there yet, and start work on the first node alone."""
    wanted = int(sys.argv[1])
    deadline = time.monotonic() + _WITHIN_S
    while (there := _nodes(os.environ["RAY_ADDRESS"])) < wanted:
        if time.monotonic() > deadline:
            raise SystemExit(
                f"phalanx: {there} of {wanted} nodes have joined the Ray cluster within {_WITHIN_S:g} s\n"
                "What `ray start` said there begins with [ray@NODE]. Nodes that were only slow to read Ray's files\n"
                "are quicker the next time: `phalanx run --restarts 1 …` tries again by itself."
            )
        time.sleep(_LOOK_EVERY_S)


def _nodes(address: str) -> int:
    # What `ray.nodes()` asks, without the two seconds that a driver takes to begin and to end.
    ray = importlib.import_module("ray._raylet")
    try:
        return sum(node.state == 0 for node in ray.GcsClient(address=address).get_all_node_info(timeout=5).values())
    except Exception:  # not there yet; Ray's classes for that differ by its version
        return 0


if __name__ == "__main__":
    main()
