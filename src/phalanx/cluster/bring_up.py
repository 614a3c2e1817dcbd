"""Bring a cluster up: create it, follow a creation in progress, change it, start its nodes again, or find it ready."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phalanx.aws import change_sets, stacks
from phalanx.aws.model import StackState
from phalanx.cluster import failed_creation, rivals
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.create import create, resume
from phalanx.cluster.diagnosis import require_living
from phalanx.cluster.ready import record_ready
from phalanx.cluster.resume import renew_limits, start_again
from phalanx.cluster.stack import Note, Progress, Stack
from phalanx.cluster.target import Target, recorded, require_key
from phalanx.cluster.update import Approve, Proposal, Settings, Update, follow, image_of, newer_image, refuse_fixed
from phalanx.errors import ClusterError
from phalanx.node.roster import Roster
from phalanx.spec.spec import ClusterSpec
from phalanx.ssh.remote import NotListening, Remote

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_LOGIN_RETRIES_S = (1.0, 2.0, 4.0, 8.0, 16.0)

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
    """Bring the cluster of a spec up. Iterate `steps()`, then read `result`.

    A cluster with other settings is changed if there is somebody to `approve` that, and is refused otherwise. With
    `new_image`, the newest image that the spec's `image` stands for is such a change.
    """

    def __init__(
        self, cloud: Aws, spec: ClusterSpec, approve: Approve | None = None, *, new_image: bool = False
    ) -> None:
        self.target = Target(cloud, spec, new_image)
        self._approve = approve
        self.result: Up | None = None

    def steps(self) -> Iterator[Step]:
        """Yield progress. Raises StackFailed when the creation failed and was undone, CloudError when refused."""
        cloud, name = self.target.cloud, self.target.spec.name
        with rivals.reported(cloud, name, lambda: self.target.was_there):
            recorded(name)  # raises NewerFormat, before anything is removed or replaced
            yield from failed_creation.clear_the_name(cloud, name)
            found = stacks.describe(cloud, name)
            self.result = yield from _to_ready(self.target, found, self._approve)
            yield from _log_in(self.target, self.result.cluster.remote())


def _to_ready(target: Target, found: StackState | None, approve: Approve | None) -> Generator[Step, None, Up]:
    if found is None:
        return _ready(target, (yield from create(target)))
    _refuse_adopted(found)
    target.was_there = True
    require_key(found)
    if found.creating:
        return _ready(target, (yield from resume(target, found)))
    state, changed = yield from _change(target, found, approve)
    return (yield from _start(target, state, changed))


def _refuse_adopted(found: StackState) -> None:
    if found.emr_cluster:
        raise ClusterError(
            f"cluster {found.name} is the adopted EMR cluster {found.emr_cluster}, which no file describes",
            "`phalanx run` uses it, and `phalanx down` gives it back. Choose another `name` for a new cluster.",
            code="adopted-cluster",
        )


def _change(
    target: Target, found: StackState, approve: Approve | None
) -> Generator[Step, None, tuple[StackState, Settings]]:
    """Give a ready stack what the file describes; return its state then, and what was changed."""
    if found.updating:
        target.stack = Stack(target.cloud, found.name, found.stack_id)
        yield Note(f"stack {found.name} is being updated already; following it")
        yield from follow(target.cloud, found)
    change_sets.forget_unexecuted(target.cloud, found.stack_id)
    changes = target.changes(found)
    if target.new_image and "image" not in changes:
        newer = newer_image(target.cloud, found, target.chosen)
        changes = {**changes, **newer}
        if not newer:
            yield Note(f"the nodes have the newest image, {image_of(found)}")
    if not changes:
        return found, {}
    refuse_fixed(found, changes)
    if approve is None:
        target.refuse_changes(found)
        return found, {}
    yield from Update(target.cloud, found, target.chosen, changes).steps(_approved(target, found, approve))
    return stacks.describe(target.cloud, found.stack_id) or found, changes


def _approved(target: Target, found: StackState, approve: Approve) -> Approve:
    """Return what asks the user, and then knows that there is an update."""

    def ask(proposal: Proposal) -> None:
        approve(proposal)
        target.stack = Stack(target.cloud, found.name, found.stack_id)

    return ask


def _start(target: Target, found: StackState, changed: Settings) -> Generator[Step, None, Up]:
    """Start the nodes of a ready stack if it has none, with a new lease."""
    cloud = target.cloud
    running = require_living(found.name, cloud.machines.running(found.name))
    if running is not None and running.stopped:
        yield from start_again(cloud, found, target.chosen)
        return _ready(target, found, changed)
    renewed = yield from renew_limits(cloud, found, target.chosen, recorded(found.name), "type" in changed)
    return _ready(target, found, {**changed, **renewed}, already=True)


def _ready(target: Target, state: StackState, changed: Settings | None = None, already: bool = False) -> Up:
    """Record how to reach the ready cluster."""
    changed = changed or {}
    settings, resize = target.settings(), None
    if "nodes" in changed:
        # Recorded once the cluster has them.
        settings["nodes"], resize = changed["nodes"][0], target.spec.nodes
    cluster, roster = record_ready(target.cloud, state, settings)
    old = target.cloud.machines.outdated(state.name) if already else []
    outdated = tuple(node.name for node in roster.nodes if node.instance_id in old)
    return Up(cluster, roster, already, changed, resize, outdated)


def _log_in(target: Target, remote: Remote) -> Iterator[Step]:
    """Open the connection that `run` and `ssh` use, and warn when ssh can't reach the head."""
    try:
        yield from _connect_with_retries(remote)
    except ClusterError as error:
        rivals.require_undisturbed(target.cloud, target.spec.name, was_there=True)
        yield Note(f"warning: {error.message}. {error.hint}")


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
