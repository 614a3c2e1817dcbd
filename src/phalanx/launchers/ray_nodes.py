"""`python3 ray_nodes.py N`: waits until the Ray cluster at RAY_ADDRESS has N nodes.

It is a separate file in the job's directory, because it runs with the Python that has Ray.
"""

from __future__ import annotations

import importlib
import os
import sys
import time

_TIMEOUT_S = 120.0
_POLL_EVERY_S = 0.2


def main() -> None:
    """Wait for the nodes: Ray would give up on a head that is not up yet, or start work only on the first node."""
    wanted = int(sys.argv[1])
    deadline = time.monotonic() + _TIMEOUT_S
    while (joined := _nodes(os.environ["RAY_ADDRESS"])) < wanted:
        if time.monotonic() > deadline:
            raise SystemExit(
                f"phalanx: {joined} of {wanted} nodes have joined the Ray cluster within {_TIMEOUT_S:g} s\n"
                "The output of `ray start` on each node begins with [ray@NODE]. Nodes that were only slow to read\n"
                "Ray's files are faster the next time: `phalanx run --restarts 1 …` tries again automatically."
            )
        time.sleep(_POLL_EVERY_S)


def _nodes(address: str) -> int:
    # The same query as `ray.nodes()`, without the two seconds that a driver takes to start and to end.
    ray = importlib.import_module("ray._raylet")
    try:
        return sum(node.state == 0 for node in ray.GcsClient(address=address).get_all_node_info(timeout=5).values())
    except Exception:  # not up yet; Ray's exception for that depends on its version
        return 0


if __name__ == "__main__":
    main()
