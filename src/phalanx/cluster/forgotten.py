"""When a stopped cluster is removed by itself (`down_after`), and what its removal leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.aws import stacks
from phalanx.aws.model import Running, StackState
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.deletion import Deletion
from phalanx.cluster.stack import Stack
from phalanx.errors import ClusterError

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws


def due_s(state: StackState, running: Running | None) -> float | None:
    """Return when the function of the stack has it deleted, in seconds since the epoch; None if it does not.

    It counts from the end of the last node, and again from an update of the stack.
    """
    after = state.outputs.get("DownAfter")
    if not after or running is None or running.idle_since_s is None:
        return None
    since = max(running.idle_since_s, state.updated_s or state.created_s)
    return max(since + float(after), running.kept_until_s)


def clean_up(cloud: Aws, name: str) -> bool:
    """Delete what the deletion of this machine's cluster left beside its data; return whether its stack was deleted."""
    try:
        record = Cluster.load(name)
    except ClusterError:
        return False
    state = stacks.describe(cloud, record.stack_id) if record.stack_id else None
    if state is None or state.status != "DELETE_COMPLETE":
        return False
    stack = Stack(cloud, name, state.stack_id)
    Deletion(stack).delete_evidence(stacks.resources(cloud, state.stack_id))
    return True
