"""`python -m benchmarks membership`: the agent's own code still runs on its simulated clock."""

from __future__ import annotations

from benchmarks.membership import NEVER, Cluster


def test_every_node_that_said_hello_acknowledges():
    cluster = Cluster(certificate_s=0.006, nodes=100)
    cluster.run()
    assert len(cluster.aws.signals) == 1
    assert len(cluster.members) == round(99 * (1 - NEVER))
    assert all(member.acked_s for member in cluster.members)
