"""The instances of one group as a rolling update sees them: which are obsolete, and their replacement."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from localcloud.autoscaling import activity, groups, launching
from localcloud.autoscaling.group import Group, Notify
from localcloud.autoscaling.reconciler import Reconciler


@dataclass(frozen=True)
class Members:
    """The members of the group with this name."""

    worker: Reconciler
    region: str
    name: str

    @property
    def _group(self) -> Group:
        return groups.find(self.worker, self.region, self.name)

    def ids(self) -> list[str]:
        """Return the ids of the instances that are starting or in service."""
        with self.worker.lock:
            return [member.id for member in self._group.active()]

    def desired(self) -> int:
        """Return the desired capacity."""
        return self._group.desired

    def maximum(self) -> int:
        """Return the largest size."""
        return self._group.maximum

    def obsolete(self) -> list[str]:
        """Return the instances, oldest first, that are not what the group would launch now."""
        with self.worker.lock:
            group = self._group
            wanted = launching.current(group)
            old = [one for one in group.active() if one.template != wanted or one.subnet not in group.subnets]
            return [member.id for member in sorted(old, key=lambda member: member.started)]

    def replace(self, ids: Collection[str], by: int, settled: Notify) -> None:
        """End these instances and change the size by this many; call `settled` when the group is complete, or fails."""
        with self.worker.lock:
            group = self._group
            group.minimum, group.desired = max(0, group.minimum + by), group.desired + by
            group.settled = settled
            now = self.worker.context.clock.now()
            for member in [member for member in group.active() if member.id in ids]:
                size = len(group.active())
                self.worker.end(group, member, activity.user_terminated(now, member.id, size, size - 1))
            self.worker.resized(group)

    def suspend(self, processes: Collection[str]) -> None:
        """Suspend these processes."""
        with self.worker.lock:
            if processes:
                self._group.suspend(processes)

    def resume(self, processes: Collection[str]) -> None:
        """Resume these processes."""
        with self.worker.lock:
            if processes:
                self._group.resume(processes)
