"""`phalanx up` under each of an organisation's rules, until its output names the rule: target 60 s.

The weather has speed 1, and the nodes have twenty minutes, so neither a divided delay nor a deadline helps.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator

from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import PHALANX, Figure, show

SPEC = "name: forbidden\ncloud: local\nnodes: 2\ntype: c5.large\nkeep: no\nnode_timeout: 20m\n"
# What AWS says, by the rule's name in `phalanx local weather`.
NAMED = {
    "explicit-deny": "with an explicit deny in a service control policy",
    "service-linked-role": "The default Service-Linked Role for Auto Scaling could not be created",
    "tag-policy": "The tag policy does not allow the specified value for the following tag key: 'phalanx:cluster'",
    "disk-key": "Client.InternalError: Client error on launch",
}
TARGET_S = 60.0
_ENDS_WITHIN_S = 600.0


def named_after_s(cluster: BenchCluster, rule: str) -> float:
    """Return the seconds from the start of `up` to the first line that names the rule."""
    cluster.phalanx("local", "weather", "1", "--only", rule)
    began, shown, named_s = time.monotonic(), "", 0.0
    argv, env = [PHALANX, "up"], cluster.environment()
    with subprocess.Popen(
        argv, cwd=cluster.directory, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as up:
        deadline = threading.Timer(_ENDS_WITHIN_S, up.kill)
        deadline.start()
        for line in up.stdout or ():
            shown += line
            if not named_s and NAMED[rule] in shown:
                named_s = time.monotonic() - began
        deadline.cancel()
    if up.returncode == 0 or not named_s or "capacity" in shown:
        raise SystemExit(f"{rule}: `up` ended with {up.returncode}:\n{shown[-2000:]}")
    return named_s


def figures() -> Iterator[Figure]:
    with bench_cluster() as cluster:
        (cluster.directory / "phalanx.yaml").write_text(SPEC)
        for rule in NAMED:
            yield Figure(f"up under {rule}, until it is named", (named_after_s(cluster, rule),), target=TARGET_S)


if __name__ == "__main__":
    show(list(figures()))
