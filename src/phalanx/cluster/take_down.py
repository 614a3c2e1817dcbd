"""Take a cluster down: its stack deleted, all of it proven gone, what this machine kept of it forgotten."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from phalanx.clouds.protocol import Cloud, StackEvent, StackState
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.stack import Deletion, Leftovers, RoleFreed, Stack, file_systems_of, require_ours
from phalanx.errors import ClusterError, PhalanxError

# What can be made again by whoever made it is no data.
_MADE_AGAIN = (".phalanx/environments", ".phalanx/tools")
_MOST_FILES = 1000
_LOOK_S = 20.0


@dataclass(frozen=True)
class Kept:
    """A shared directory that outlives its cluster: the file system, where its data lies, what would delete it."""

    file_system: str
    place: str
    delete: str


class TakeDown:
    """Delete a cluster's stack, prove it gone, forget what this machine kept. `found`: there was one.

    `keep` (yes, no or ask; None: as the cluster's file said) is about the data in the shared directory. Where that
    means to ask, `wanted(contents)` answers whether to delete it; nobody does by default, and it is kept.
    """

    def __init__(
        self, cloud: Cloud, name: str, keep: str | None = None, wanted: Callable[[str], bool] = lambda _: False
    ) -> None:
        self.cloud, self.name = cloud, name
        self.kept: Kept | None = None
        self._keep, self._wanted = keep, wanted
        self._state = self._find()
        self._doomed = self._decide(self._state) if self._state else ()

    @property
    def found(self) -> bool:
        return self._state is not None

    def steps(self) -> Iterator[StackEvent | Leftovers | RoleFreed]:
        """Progress as it comes; raises CloudError naming what could not be removed."""
        if self._state is not None:
            stack = Stack(self.cloud, self._state.name, self._state.stack_id)
            yield from Deletion(stack, self._doomed).steps()
        record = self._record()
        forget(self.name)
        bucket = record.spec.get("bucket") if record else None
        if bucket:
            # An `up` that was killed may have left its template there.
            self.cloud.clear_bucket(str(bucket), self.name)
        self.cloud.stop_if_idle()

    def _find(self) -> StackState | None:
        """The stack of that name; else the one that our record knows by its id.

        A deletion that nobody watched to its end has left the log group, and nothing was proven yet.
        """
        found = self.cloud.describe_stack(self.name) or self._recorded_state()
        if found is not None:
            require_ours(found)
        return found

    def _recorded_state(self) -> StackState | None:
        record = self._record()
        return self.cloud.describe_stack(record.stack_id) if record and record.stack_id else None

    def _record(self) -> Cluster | None:
        try:
            return Cluster.load(self.name)
        except ClusterError:
            return None

    def _decide(self, state: StackState) -> tuple[str, ...]:
        """The file systems to delete; sets `kept` when the cluster's is not among them."""
        made = file_systems_of(Stack(self.cloud, state.name, state.stack_id))
        if state.status.startswith(("CREATE_IN", "CREATE_F", "ROLLBACK")):
            return made  # nobody could use it yet
        file_system = state.outputs.get("SharedFileSystem", "") or next(iter(made), "")
        if not file_system or self._is_to_go():
            return (file_system,) if file_system else ()
        self.kept = Kept(file_system, *self.cloud.file_system_place(file_system))
        return ()

    def _is_to_go(self) -> bool:
        record = self._record()
        spec = record.spec if record else {}
        keep = self._keep or spec.get("keep") or ("yes" if spec.get("file_system") else "ask")
        if keep == "ask":
            contents = _contents(record)
            return not contents or self._wanted(contents)
        return keep == "no"


def _contents(record: Cluster | None) -> str:
    """What the shared directory holds, in words; "" when that is nothing. What can't be looked at counts as data."""
    if record is None or not record.ready:
        return "data that can't be looked at"
    without = " ".join(f"-not -path {shlex.quote(f'./{path}/*')}" for path in _MADE_AGAIN)
    look = f"cd {shlex.quote(record.shared)} && find . -type f {without} 2>&1 | head -n {_MOST_FILES}"
    try:
        files = record.remote().run(look, timeout_s=_LOOK_S).stdout.decode(errors="replace").splitlines()
    except PhalanxError as error:
        return f"data that can't be looked at ({error.message})"
    count = f"{len(files)} files" if len(files) < _MOST_FILES else f"{_MOST_FILES} files or more"
    return f"{count} in {record.shared}, such as {files[0].removeprefix('./')}" if files else ""


def forget(name: str) -> None:
    """Drop this machine's record of a cluster; no error without one."""
    Cluster(name, "", "").forget()
