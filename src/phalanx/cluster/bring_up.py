"""Bring a cluster up: create it, follow a creation in progress, or find it ready; clean up a failure and explain it."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from phalanx.aws import change_sets, stacks
from phalanx.aws.model import StackState
from phalanx.cluster import failed_creation, forgotten, keys, rivals, shortage
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.deletion import Deletion
from phalanx.cluster.diagnosis import require_living
from phalanx.cluster.note import Note
from phalanx.cluster.ready import record_ready
from phalanx.cluster.resume import renew_limits, start_again
from phalanx.cluster.stack import Creation, Progress, Stack, deploy, read_roster, require_ours
from phalanx.cluster.update import Approve, Proposal, Settings, Update, described, follow, refuse_fixed
from phalanx.errors import CloudError, ClusterError, NoCapacity, PhalanxError, StackFailed
from phalanx.node.roster import Roster
from phalanx.plan.plan import Plan
from phalanx.plan.plan_text import installed_at_boot, warnings
from phalanx.spec.spec import ClusterSpec
from phalanx.ssh.remote import NotListening, Remote

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_LOGIN_RETRIES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
# Settings that may change after `up`: what `down` keeps, how few nodes a creation accepts, the types that were not
# needed, the way of the document, and the limits, which count from the next start of the nodes.
_FREE = frozenset({"keep", "min", "lease_s", "bucket", "budget", "other_types"})
_WAIT = "Wait until its status changes, or remove it with `phalanx down`."
_UNDO = "`aws cloudformation continue-update-rollback --stack-name {}` takes it back; or remove it with `phalanx down`."
_NOTHING_TO_LOSE = frozenset({"ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "DELETE_FAILED"})


Step = Progress | Note


@dataclass(frozen=True)
class Up:
    """A cluster that is ready. `already`: it was ready before, and nothing was created.

    `changed` are the settings that were changed, `resize` is the number of nodes that it should have, if that is
    another one, and `outdated` are the nodes that run with settings from before a change.
    """

    cluster: Cluster
    roster: Roster
    already: bool
    changed: Settings = field(default_factory=dict)
    resize: int | None = None
    outdated: tuple[str, ...] = ()


class BringUp:
    """Create the cluster, follow its creation, or find it ready. Iterate `steps()`, then read `result`.

    A cluster with other settings is changed if there is somebody to `approve` that, and is refused otherwise.
    """

    def __init__(self, cloud: Aws, spec: ClusterSpec, approve: Approve | None = None) -> None:
        self.cloud, self.spec, self._approve = cloud, spec, approve
        self._changed: Settings = {}
        # The spec with the type of the machines that are there.
        self._chosen = spec
        self.result: Up | None = None
        self.stack: Stack | None = None
        # From just before the stack is requested.
        self.may_be_requested = False
        self._was_there = False

    def steps(self) -> Iterator[Step]:
        """Yield progress. Raises StackFailed when the creation failed and was undone, CloudError when refused."""
        with rivals.reported(self.cloud, self.spec.name, lambda: self._was_there):
            yield from self._bring_up()
            yield from self._log_in()

    def _bring_up(self) -> Iterator[Step]:
        _recorded(self.spec.name)  # raises NewerFormat, before anything is removed or replaced
        yield from self._clear_the_name()
        found = stacks.describe(self.cloud, self.spec.name)
        if found is None:
            yield from self._create()
            return
        if found.emr_cluster:
            raise ClusterError(
                f"cluster {found.name} is the adopted EMR cluster {found.emr_cluster}, which no file describes",
                "`phalanx run` uses it, and `phalanx down` gives it back. Choose another `name` for a new cluster.",
            )
        self._was_there = True
        self._require_key(found)
        if found.creating:
            self._refuse_changes(found)
            yield Note(f"stack {found.name} is being created already; following it")
            yield from self._resume(found)
        else:
            yield from self._start((yield from self._update(found)))

    def _update(self, found: StackState) -> Generator[Step, None, StackState]:
        """Give a ready stack what the file describes; return its state then."""
        if found.updating:
            self.stack = Stack(self.cloud, found.name, found.stack_id)
            yield Note(f"stack {found.name} is being updated already; following it")
            yield from follow(self.cloud, found)
        change_sets.forget_all(self.cloud, found.stack_id)
        changes = self.changes(found)
        if not changes:
            return found
        refuse_fixed(found, changes)
        if self._approve is None:
            self._refuse_changes(found)
        yield from Update(self.cloud, found, self._chosen, changes).steps(self._approved(found))
        self._changed = changes
        return stacks.describe(self.cloud, found.stack_id) or found

    def _start(self, found: StackState) -> Iterator[Step]:
        """Start the nodes of a ready stack if it has none, with a new lease."""
        running = require_living(found.name, self.cloud.machines.running(found.name))
        stopped = running is not None and running.stopped
        if stopped:
            yield from start_again(self.cloud, found, self._chosen)
        else:
            has_new_type = "type" in self._changed
            yield from renew_limits(self.cloud, found, self._chosen, _recorded(found.name), has_new_type)
        self._finish(found, already=not stopped)

    def _approved(self, found: StackState) -> Approve:
        """Return what asks the user, and then knows that there is an update."""

        def ask(proposal: Proposal) -> None:
            assert self._approve is not None
            self._approve(proposal)
            self.stack = Stack(self.cloud, found.name, found.stack_id)

        return ask

    def _clear_the_name(self) -> Iterator[Step]:
        """Remove what an earlier attempt left under the name, unless it is ready or being created."""
        found = stacks.describe(self.cloud, self.spec.name)
        if found is None:
            if forgotten.clean_up(self.cloud, self.spec.name):
                yield Note(f"the stack of cluster {self.spec.name} was deleted since; making it again")
            return
        require_ours(found)
        if found.ready or found.creating or found.updating:
            return
        stack = Stack(self.cloud, found.name, found.stack_id)
        yield from self._wait_until_idle(found, stack)
        yield Note(f"an earlier attempt left stack {found.name} as {found.status}; removing its remains first")
        yield from Deletion(stack).steps()

    def _wait_until_idle(self, found: StackState, stack: Stack) -> Iterator[Step]:
        if found.status == "ROLLBACK_IN_PROGRESS":
            yield Note(f"an earlier attempt to create {found.name} is being rolled back; waiting for it")
            yield from Creation(stack).steps()
        elif found.status not in _NOTHING_TO_LOSE and not found.status.startswith("DELETE"):
            raise CloudError(
                f"stack {found.name} is {found.status}, and `up` can't continue from that state",
                _UNDO.format(found.name) if found.status == "UPDATE_ROLLBACK_FAILED" else _WAIT,
            )

    def _create(self) -> Iterator[Step]:
        """Create the cluster in the first zone, and of the first type, for which AWS has capacity."""
        if self.spec.is_private:
            # What ssh takes then may be missing on this machine: not only after the cluster was paid for.
            self.cloud.site.ssh_route(by_session=True)
        plans = shortage.plans(self.cloud, self.spec)
        plan = next(plans)
        yield from self._try(self._create_from(plan), shortage.place(plan), plans)

    def _resume(self, found: StackState) -> Iterator[Step]:
        """Follow a creation; without capacity for it, go on as the `up` that was interrupted would have done."""
        kind, zone = (found.parameters.get(name, "") for name in ("InstanceType", "Zone"))
        attempt = self._follow(Stack(self.cloud, found.name, found.stack_id))
        yield from self._try(attempt, f"{kind} in {zone}", shortage.plans_after(self.cloud, self.spec, kind, zone))

    def _try(self, attempt: Iterator[Step], place: str, plans: Iterator[Plan]) -> Iterator[Step]:
        """Make an attempt; where AWS has no capacity for it, make another one by each of these plans."""
        while True:
            try:
                yield from attempt
                return
            except NoCapacity as failure:
                following = next(plans, None)
                if following is None:
                    raise
                reason = failure.message.partition("\n")[2].partition("\n")[0]
            yield Note(f"no capacity for {place}: {reason}")
            attempt, place = self._create_from(following), shortage.place(following)
            yield Note(f"nothing of that attempt is left; trying {place}")

    def _create_from(self, plan: Plan) -> Iterator[Step]:
        self._chosen = replace(self.spec, type=plan.spec.type)
        key = keys.make(self.spec.name)
        plan = replace(plan, facts=replace(plan.facts, ssh_public_key=key))
        # Written before the stack is requested, so that the next `up` finds the key if this one is killed.
        cluster = self._record().save()
        try:
            if plan.facts.kept_file_system:
                yield Note(f"{self.spec.shared} uses the file system that `down` kept: {plan.facts.kept_file_system}")
            if installed := installed_at_boot(plan):
                yield Note(f"each node's boot installs {installed}")
            yield from (Note(f"warning: {warning}") for warning in warnings(plan))
            stack = yield from self._deploy(plan)
        except PhalanxError:
            cluster.forget()
            raise
        yield from self._follow(stack)

    def _log_in(self) -> Iterator[Step]:
        """Open the connection that `run` and `ssh` use, and warn when ssh can't reach the head."""
        assert self.result is not None
        try:
            yield from _connect_with_retries(self.result.cluster.remote())
        except ClusterError as error:
            rivals.require_undisturbed(self.cloud, self.spec.name, was_there=True)
            yield Note(f"warning: {error.message}. {error.hint}")

    def _deploy(self, plan: Plan) -> Generator[Note, None, Stack]:
        """Create the stack, or follow it if another `up` has just created it."""
        try:
            return (yield from deploy(self.cloud, plan, self._begins, self._begun))
        except StackFailed:
            raise  # of another document than this one: never to be followed
        except CloudError:
            found = stacks.describe(self.cloud, self.spec.name)
            if found is None or not found.creating or not found.ours:
                raise
            self._require_key(found)
            self._refuse_changes(found)
            return Stack(self.cloud, found.name, found.stack_id)

    def _begins(self) -> None:
        self.may_be_requested = True

    def _begun(self, stack: Stack) -> None:
        self.stack = stack

    def _follow(self, stack: Stack) -> Iterator[Step]:
        self.stack, self._was_there = stack, True
        cluster = self._record(stack.stack_id).save()
        creation = Creation(stack)
        yield from creation.steps()
        if creation.was_deleted:
            cluster.forget()
            raise rivals.deleted(self.spec.name)
        if creation.state is None or not creation.ready:
            yield from failed_creation.clean_up(cluster, creation)
        else:
            self._finish(creation.state, already=False)

    def _require_key(self, found: StackState) -> None:
        """Raise ClusterError unless an existing stack has this machine's key."""
        mine = keys.public(found.name)
        theirs = found.parameters.get("SshPublicKey", "")
        if not mine or (theirs and theirs.split()[:2] != mine.split()[:2]):
            raise ClusterError(
                f"cluster {found.name} exists, but was created with another machine's key",
                "Use the machine that ran `phalanx up`, or run `phalanx down` and `phalanx up` here.",
            )

    def _refuse_changes(self, found: StackState) -> None:
        """Raise ClusterError unless an existing stack has the requested settings."""
        changes = self.changes(found)
        if changes:
            hint = "`phalanx up` shows what would change, and asks."
            if changes.keys() == {"nodes"}:
                hint = f"Run `phalanx scale {self.spec.nodes}` to change the number of nodes."
            raise ClusterError(f"cluster {found.name} exists with other settings: {described(changes)}", hint)

    def changes(self, found: StackState) -> dict[str, tuple[object, object]]:
        """Return the settings that differ between the cluster and the file: (before, now) by key."""
        try:
            cluster = Cluster.load(found.name)
        except ClusterError:
            return {}
        if cluster.spec.get("type") in self.spec.types:
            self._chosen = replace(self.spec, type=cluster.spec["type"])
        wanted = self._settings()
        # A record that `adopt` wrote has only the settings that the stack's parameters show.
        changes: dict[str, tuple[object, object]] = {
            key: (before, wanted[key])
            for key, before in cluster.spec.items()
            if key in wanted and key not in _FREE and before != wanted[key]
        }
        if "nodes" in changes and self._requested_nodes(cluster) == self.spec.nodes:
            del changes["nodes"]
        return changes

    def _requested_nodes(self, cluster: Cluster) -> int | None:
        """Return the number of nodes that `phalanx scale` last requested; the file may have been changed to it."""
        roster = read_roster(self.cloud, cluster.table) if cluster.table else None
        return roster.requested if roster else None

    def _finish(self, state: StackState, already: bool) -> None:
        """Record how to reach the ready cluster."""
        settings, resize = self._settings(), None
        if "nodes" in self._changed:
            # Recorded once the cluster has them.
            settings["nodes"], resize = self._changed["nodes"][0], self.spec.nodes
        cluster, roster = record_ready(self.cloud, state, settings)
        old = self.cloud.machines.outdated(state.name) if already else []
        outdated = tuple(node.name for node in roster.nodes if node.instance_id in old)
        self.result = Up(cluster, roster, already, self._changed, resize, outdated)

    def _record(self, stack_id: str = "") -> Cluster:
        return Cluster(self.spec.name, self.cloud.name, self.cloud.region, stack_id, spec=self._settings())

    def _settings(self) -> dict[str, object]:
        # As the record has them, for comparison: JSON has lists and no tuples.
        return json.loads(json.dumps(asdict(self._chosen)))


def _recorded(name: str) -> Mapping[str, object]:
    """Return the settings in this machine's record of a cluster; none without a record. Raises NewerFormat."""
    try:
        return Cluster.load(name).spec
    except ClusterError:
        return {}


def _connect_with_retries(remote: Remote) -> Iterator[Note]:
    """Connect; retry, because the Elastic IP may move to the head a moment after the head is ready."""
    for number, pause_s in enumerate(_LOGIN_RETRIES_S):
        try:
            remote.connect()
            return
        except NotListening as error:
            if number == 0:
                yield Note(f"waiting for the head to accept ssh: {error.message}")
        time.sleep(pause_s)
    remote.connect()
