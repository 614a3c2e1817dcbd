"""Take a cluster down: delete its stack, prove that nothing is left, and remove its record from this machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phalanx.aws import change_sets, stacks
from phalanx.aws.inventory import foreign
from phalanx.aws.model import StackEvent, StackState
from phalanx.cluster import give_back
from phalanx.cluster.cluster_record import JOB_USER, Cluster
from phalanx.cluster.deletion import LETS_NODES_IN, Deletion, file_systems_of
from phalanx.cluster.stack import ForeignDeleted, Leftovers, RoleFreed, Stack, require_ours
from phalanx.counts import counted, first_of
from phalanx.errors import CloudError, CloudUnreachable, ClusterError, PhalanxError
from phalanx.spec import spec_lustre
from phalanx.spec.spec_storage import HEAD

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# Files that phalanx can create again do not count as data.
_MADE_AGAIN = (".phalanx/environments", ".phalanx/tools")
# Beside a user's own files these are mentioned, but not counted.
_RECORDS = ".phalanx/jobs"
_MOST_FILES = 1000
_LOOK_S = 20.0
# A user's name, as a node may have it: it could answer anything.
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@dataclass(frozen=True)
class Kept:
    """A file system that outlives its cluster: its id, where its data is, and the command that deletes it."""

    file_system: str
    place: str
    delete: str


class TakeDown:
    """Delete a cluster's stack, prove that nothing is left, and remove its record. `found`: there was a stack.

    `keep` (yes, no or ask; None: as phalanx.yaml specified) decides about the data in the shared directory. With ask,
    `wanted(contents)` returns whether to delete it. By default it is kept. What the head serves from its own disk ends
    with it: `loses(contents)` returns whether it may, which is the default. `lost` describes it.
    """

    def __init__(
        self,
        cloud: Aws,
        name: str,
        keep: str | None = None,
        wanted: Callable[[str], bool] = lambda _: False,
        loses: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.cloud, self.name = cloud, name
        self.kept: Kept | None = None
        self.lost = ""
        self._keep, self._wanted, self._loses = keep, wanted, loses
        self._state = self._find()
        self._stack_ids = {one.stack_id for one in (self._record(), self._state) if one is not None}
        self._doomed = self._decide(self._state) if self._state else ()

    @property
    def found(self) -> bool:
        return self._state is not None

    @property
    def goes_on(self) -> str:
        """What was adopted, and goes on without phalanx, as users are told; "" for a cluster of phalanx's own."""
        return f"EMR cluster {self._state.emr_cluster}" if self._state and self._state.emr_cluster else ""

    def steps(self) -> Iterator[StackEvent | Leftovers | RoleFreed | ForeignDeleted | give_back.Released]:
        """Yield progress. Raises CloudError, which names what could not be removed."""
        if self._state is not None and self._state.in_review:
            change_sets.remove_empty_stack(self.cloud, self._state.stack_id)
        elif self._state is not None:
            if self.goes_on:
                yield from self._release()
            stack = Stack(self.cloud, self._state.name, self._state.stack_id)
            if self._state.ready:
                change_sets.forget_unexecuted(self.cloud, stack.stack_id)
            yield from Deletion(stack, self._doomed).steps()
        self._forget()
        self.cloud.site.stop_if_idle()

    def _forget(self) -> None:
        """Remove the record, unless it is of another stack: then `up` has written it meanwhile, with its new key."""
        record = self._record()
        if record is None or record.stack_id in self._stack_ids:
            forget(self.name)

    def _release(self) -> Iterator[give_back.Released]:
        if (record := self._record()) is not None:
            yield from give_back.release(self.cloud, record)

    def _find(self) -> StackState | None:
        """Return the stack of that name, or the one whose id is in the record.

        A deletion that `down` did not follow to its end has left the log group, and nothing has been proven gone.
        """
        found = stacks.describe(self.cloud, self.name) or self._recorded_state()
        if found is not None:
            require_ours(found)
        return found

    def _recorded_state(self) -> StackState | None:
        record = self._record()
        return stacks.describe(self.cloud, record.stack_id) if record and record.stack_id else None

    def _record(self) -> Cluster | None:
        try:
            return Cluster.load(self.name)
        except ClusterError:
            return None

    def _decide(self, state: StackState) -> tuple[str, ...]:
        """Return the file systems to delete; set `kept` if the cluster's is not one of them."""
        if state.in_review:
            return ()
        made = file_systems_of(Stack(self.cloud, state.name, state.stack_id))
        if state.status.startswith(("CREATE_IN", "CREATE_F", "ROLLBACK")):
            return made  # nobody has used it yet
        self._refuse_shared(state)
        file_system = state.outputs.get("SharedFileSystem", "") or next(iter(made), "")
        if not file_system:
            self._let_go_of_the_head(state)
        if not file_system or self._must_delete_data():
            self._refuse_mounted(state, file_system)
            return (file_system,) if file_system else ()
        is_lustre = "Lustre" in state.outputs
        if is_lustre and file_system in made:
            raise ClusterError(
                f"nothing was deleted: the data of {state.name} are in {file_system}, a Lustre file system in the "
                "network that would be deleted with the cluster",
                "Copy what you need (`phalanx get`, or jobs that write to a prefix linked to S3), then run `phalanx "
                "down --keep no`.",
                code="data-would-be-lost",
            )
        self.kept = Kept(file_system, *self.cloud.site.file_system_place(file_system, is_lustre))
        return ()

    def _refuse_shared(self, state: StackState) -> None:
        """Raise ClusterError if the nodes of another cluster need this one's network or mount target."""
        found = foreign.sharers(self.cloud, state.name, stacks.resources(self.cloud, state.stack_id))
        # Security groups that a deleted stack has left are named when they are in the way.
        if others := [name for name in found if self._may_exist(name)]:
            use = f"{' and '.join(others)} {'uses' if len(others) == 1 else 'use'}"
            raise ClusterError(
                f"nothing was deleted: {use} the network or the shared directory of {state.name}",
                f"Take that down first: {' and '.join(f'`phalanx down -c {name}`' for name in others)}.",
                code="used-by-others",
            )

    def _may_exist(self, name: str) -> bool:
        """Whether there is such a stack, or nobody with these rights can know."""
        try:
            return stacks.describe(self.cloud, name) is not None
        except CloudUnreachable:
            raise
        except CloudError:
            return True

    def _refuse_mounted(self, state: StackState, file_system: str) -> None:
        """Raise ClusterError if the file system has mount targets of others, with which EFS deletes none."""
        if any(one.logical_id == LETS_NODES_IN for one in stacks.resources(self.cloud, state.stack_id)):
            raise ClusterError(
                f"nothing was deleted: {file_system} has mount targets that are not {state.name}'s, so it can't be "
                "deleted with the cluster",
                "Keep it: `phalanx down --keep yes`.",
                code="used-by-others",
            )

    def _let_go_of_the_head(self, state: StackState) -> None:
        """Ask about data on the head's own disk, which end with it. Raises ClusterError unless they may."""
        if state.status.startswith("DELETE_"):
            return  # an earlier `down` has asked
        record, running = self._record(), self.cloud.machines.running(state.name)
        if record is None or record.spec.get("storage") != HEAD or (running is not None and running.stopped):
            return
        keep = self._keep or record.spec.get("keep") or "ask"
        self.lost = _contents(record)
        if self.lost and (keep == "yes" or (keep == "ask" and not self._loses(self.lost))):
            raise ClusterError(
                f"nothing was deleted: the head's own disk has {self.lost}",
                "Fetch what you need with `phalanx get`; `phalanx down --keep no` deletes them with the head.",
                code="data-would-be-lost",
            )

    def _must_delete_data(self) -> bool:
        record = self._record()
        spec = record.spec if record else {}
        keep = self._keep or spec.get("keep") or ("yes" if spec.get("file_system") else "ask")
        if keep == "ask":
            contents = _contents(record)
            return not contents or self._wanted(contents)
        return keep == "no"


def _contents(record: Cluster | None) -> str:
    """Describe the contents of the shared directory; "" if it is empty. One that can't be read counts as data."""
    if record is None or not record.ready:
        return "data that can't be listed"
    look = f"cd {shlex.quote(record.shared)} && {_listing(record)}"
    try:
        lines = record.remote().run(look, timeout_s=_LOOK_S).stdout.decode(errors="replace").splitlines()
    except PhalanxError as error:
        return f"data that can't be listed ({error.message})"
    except OSError as error:  # this machine's disk is full, say
        return f"data that can't be listed ({error.strerror})"
    files = [line for line in lines if f"\t./{_RECORDS}/" not in line]
    if not files:
        return f"records of jobs in {record.shared}" if lines else ""
    return _described(files, record.shared) + (", and records of jobs" if len(files) < len(lines) else "")


def _listing(record: Cluster) -> str:
    """Return the shell command that lists the files that count, each after its owner, and one of the jobs' records."""
    again = [_RECORDS, *_MADE_AGAIN, *(f"data/{name}" for name in _imported(record.spec))]
    without = " ".join(f"-not -path {shlex.quote(f'./{path}/*')}" for path in again)
    form = "-printf '%u\\t%p\\n'"
    record_of_job = f"find ./{_RECORDS} -type f {form} -quit 2>/dev/null"  # fails where no job ran
    return f"{{ find . -type f {without} {form} 2>&1 | head -n {_MOST_FILES}; {record_of_job} || true; }}"


def _described(lines: list[str], shared: str) -> str:
    number = counted(len(lines), "file")
    count = number if len(lines) < _MOST_FILES else f"{_MOST_FILES} files or more"
    owners = sorted(
        {owner for owner, tab, _ in (line.partition("\t") for line in lines) if tab and _USER.fullmatch(owner)}
    )
    whose = f", which belong to {first_of(owners, most=5)}" if owners not in ([], [JOB_USER]) else ""
    first = lines[0].rpartition("\t")[2].removeprefix("./")
    return f"{count} in {shared}, such as {first}{whose}"


def _imported(spec: Mapping[str, Any]) -> list[str]:
    """Return the directories whose files FSx imports from S3, and where jobs can't write."""
    linked = spec_lustre.linked(spec.get("lustre"), spec.get("data"))
    return [place.name for place in linked if not place.is_writable]


def forget(name: str) -> None:
    """Remove this machine's record of a cluster; no error without one."""
    Cluster(name, "", "").forget()
