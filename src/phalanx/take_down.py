"""Take a cluster down: its stack deleted, all of it proven gone, what this machine kept of it forgotten."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.cloud import Cloud, StackEvent, StackState
from phalanx.cluster import Cluster
from phalanx.errors import ClusterError
from phalanx.stack import Deletion, Leftovers, Stack, require_ours


class TakeDown:
    """Delete a cluster's stack, prove it gone, forget what this machine kept. `found`: there was one."""

    def __init__(self, cloud: Cloud, name: str) -> None:
        self.cloud, self.name = cloud, name
        self.found = False

    def steps(self) -> Iterator[StackEvent | Leftovers]:
        """Progress as it comes; raises CloudError naming what could not be removed."""
        state = self._state()
        if state is not None:
            require_ours(state)
            self.found = True
            yield from Deletion(Stack(self.cloud, state.name, state.stack_id)).steps()
        forget(self.name)
        self.cloud.stop_if_idle()

    def _state(self) -> StackState | None:
        """The stack of that name; else the one that our record knows by its id.

        A deletion that nobody watched to its end has left the log group, and nothing was proven yet.
        """
        return self.cloud.describe_stack(self.name) or self._recorded_state()

    def _recorded_state(self) -> StackState | None:
        try:
            stack_id = Cluster.load(self.name).stack_id
        except ClusterError:
            return None
        return self.cloud.describe_stack(stack_id) if stack_id else None


def forget(name: str) -> None:
    """Drop this machine's record of a cluster; no error without one."""
    Cluster(name, "", "").forget()
