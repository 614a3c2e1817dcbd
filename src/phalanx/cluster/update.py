"""Update a cluster that is there to a changed phalanx.yaml: what CloudFormation would change, and the change itself."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from phalanx import template
from phalanx.aws import change_sets, lookups, policies, stacks
from phalanx.aws.model import ChangeSet, StackChange, StackEvent, StackState
from phalanx.cluster.deletion import REMOVAL_ROLE
from phalanx.cluster.large_document import send
from phalanx.cluster.stack import UP_DEADLINE_S, Deadline, Follower, Note, Stack, describe_cause
from phalanx.errors import ClusterError, SpecError, StackFailed
from phalanx.plan.machine_images import is_ami
from phalanx.plan.plan import Facts, Plan, known_sizes, make_plan
from phalanx.spec import spec_lustre
from phalanx.spec.spec import KEYS, ClusterSpec
from phalanx.spec.spec_key import Needs

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# `phalanx scale`, `extend` and the stack's own life decide about these, not the file.
_KEPT = ("Workers", "MinNodes", "SshPublicKey", "KmsKey", "FileSystemId", "LeaseEnd", "Zone")
# No setting takes these from a cluster, and data or membership would go with them.
_NEVER_REMOVED = (
    *("AWS::EFS::FileSystem", "AWS::EFS::MountTarget", "AWS::FSx::FileSystem"),
    *("AWS::DynamoDB::Table", "AWS::SQS::Queue"),
)
_AGAIN = "Run `phalanx down`, then `phalanx up`; or choose another `name` for the new cluster."

_CHANGES = {one.field: one.change for one in KEYS.values()}

Settings = Mapping[str, tuple[object, object]]


@dataclass(frozen=True)
class Proposal:
    """What a changed file changes of a cluster: its settings, (before, now) by field, and the stack's resources."""

    cluster: str
    settings: Settings
    resources: tuple[StackChange, ...] = ()


Approve = Callable[[Proposal], None]
"""Asks whether to go on, and raises an exception if not."""


def described(settings: Settings) -> str:
    """Describe changed settings on one line."""
    return "; ".join(f"{key}: {before} → {now}" for key, (before, now) in settings.items())


def needs(setting: str) -> Needs:
    """Return what another value of a field of ClusterSpec needs; nothing for what is no key of the file."""
    return _CHANGES[setting].needs if setting in _CHANGES else Needs.NOTHING


def refuse_fixed(found: StackState, settings: Settings) -> None:
    """Raise ClusterError for settings that can't change while there is a cluster, such as zones without its own."""
    fixed = {name: values for name, values in settings.items() if needs(name) is Needs.ANOTHER_CLUSTER}
    zones = settings.get("zones", (None, None))
    if zones[1] and found.parameters.get("Zone") not in cast("list[str]", zones[1]):
        fixed["zones"] = zones
    if "lustre" in settings and not fixed:
        _refuse_other_lustre(found, settings)
    if fixed:
        raise ClusterError(
            f"cluster {found.name} exists with other settings: {described(fixed)}", _AGAIN, code="settings-differ"
        )


def _refuse_other_lustre(found: StackState, settings: Settings) -> None:
    """Raise ClusterError for what FSx can't change of a file system that is there."""
    wrong = spec_lustre.cannot_become(*cast("tuple[Any, Any]", settings["lustre"]))
    if wrong:
        raise ClusterError(
            f"cluster {found.name} exists with other settings: {described({'lustre': settings['lustre']})}; {wrong}",
            _AGAIN,
            code="settings-differ",
        )


def image_of(found: StackState) -> str:
    """Return the image of the stack's nodes: what its parameter stood for at the last operation."""
    return found.resolved.get("Image") or found.parameters.get("Image", "")


def newer_image(cloud: Aws, found: StackState, spec: ClusterSpec) -> Settings:
    """Return a changed setting if the spec's image stands for another one by now than the nodes have."""
    plan = make_plan(spec, cloud.site.facts(replace(spec, other_types=()), found.parameters.get("SshPublicKey", "")))
    now = plan.image_parameter
    if not is_ami(now):
        now = lookups.image_id(cloud, now, plan.facts.architecture)
    return {"image": (image_of(found), now)} if now and now != image_of(found) else {}


class Update:
    """An update of a cluster's stack. Iterate `steps()`; it ends when the stack has what the file describes."""

    def __init__(self, cloud: Aws, found: StackState, spec: ClusterSpec, settings: Settings) -> None:
        self._cloud, self._found, self._spec, self._settings = cloud, found, spec, settings

    def steps(self, approve: Approve) -> Iterator[StackEvent | Note]:
        """Yield progress. Raises ClusterError for what can't change, StackFailed when everything was taken back."""
        changes = yield from self.review()
        try:
            if changes:
                self._refuse_replacements(changes.changes)
            approve(Proposal(self._found.name, self._settings, changes.changes if changes else ()))
        except BaseException:
            if changes:
                change_sets.forget(self._cloud, changes.change_set_id)
            raise
        if changes:
            yield from self._execute(changes)

    def review(self) -> Generator[Note, None, ChangeSet | None]:
        """Have the stack compared with the file; None if nothing of it differs. Whoever asks forgets the change set."""
        if not any(needs(name) in (Needs.UPDATE, Needs.ANOTHER_CLUSTER) for name in self._settings):
            return None
        self._refuse_other_agent(template.agent_version())
        plan = self._plan()
        document, parameters = template.request(plan)
        kept = [name for name in _KEPT if name in self._found.parameters]
        sent = {name: value for name, value in parameters.items() if name not in kept}
        return (
            yield from send(
                self._cloud,
                plan.spec,
                document,
                lambda source: change_sets.review(self._cloud, self._found, source, sent, kept, plan.spec.tags),
            )
        )

    def _plan(self) -> Plan:
        """Plan the cluster in its present zone."""
        spec = replace(self._spec, other_types=())
        facts = self._cloud.site.facts(spec, self._found.parameters.get("SshPublicKey", ""))
        plan = make_plan(spec, facts)
        plan = self._with_its_image(plan)
        zone = self._found.parameters.get("Zone", plan.zone)
        if facts.zones and zone not in facts.zones:
            raise SpecError(
                f"type: {zone}, where the cluster is, does not offer {self._spec.type}", _AGAIN, code="type-not-offered"
            )
        return replace(plan, zone=zone)

    def _with_its_image(self, plan: Plan) -> Plan:
        """Plan with the image that the nodes have. An alias, a path or a recipe may name a newer one by now.

        UsePreviousValue would keep only the path, whose newest value CloudFormation then takes (aws-behaviour 1.35).
        """
        found, image = self._found, image_of(self._found)
        if not is_ami(image) or not self._needs_the_same_image(plan.facts):
            return plan
        facts = replace(plan.facts, image=self._cloud.site.image(image) or plan.facts.image)
        device = found.parameters.get("RootDevice", plan.root_device)
        return replace(plan, facts=facts, image_parameter=image, root_device=device)

    def _needs_the_same_image(self, facts: Facts) -> bool:
        """Whether the file names no other image, nor a type for another processor, or with GPUs for the first time."""
        before = known_sizes(str(self._settings.get("type", (self._spec.type,))[0]))
        if "image" in self._settings:
            return False
        return "type" not in self._settings or (
            before is not None and (before["architecture"], before["gpus"] > 0) == (facts.architecture, facts.gpus > 0)
        )

    def _refuse_other_agent(self, version: str) -> None:
        """Raise ClusterError if new nodes would run another agent than the head that is there."""
        theirs = self._found.outputs["AgentVersion"]
        running = self._cloud.machines.running(self._found.name)
        if theirs != version and not (running and running.stopped):
            raise ClusterError(
                f"cluster {self._found.name} has the agent of phalanx {theirs}, and this is {version}",
                f"Update it with that version, or while its nodes are stopped. {_AGAIN}",
                code="other-version",
            )

    def _refuse_replacements(self, changes: Sequence[StackChange]) -> None:
        """Raise ClusterError if AWS would replace or remove a part that the nodes need."""
        replaced = [one.logical_id for one in changes if one.replacement == "True" and not one.is_subscription]
        removed = [one.logical_id for one in changes if one.action == "Remove" and one.resource_type in _NEVER_REMOVED]
        for what, names in (("replace", replaced), ("remove", removed)):
            if names:
                raise ClusterError(
                    f"AWS can't change cluster {self._found.name} in place: {described(self._settings)} would {what} "
                    f"{', '.join(names)}, which its nodes use",
                    _AGAIN,
                    code="change-replaces",
                )

    def _execute(self, changes: ChangeSet) -> Iterator[StackEvent]:
        before = stacks.events(self._cloud, self._found.stack_id, None)
        retained = self._retained(changes.changes)
        change_sets.execute(self._cloud, changes.change_set_id)
        yield from _follow(self._cloud, self._found, before[-1].event_id if before else None)
        for role in retained:
            policies.delete_role(self._cloud, role)

    def _retained(self, changes: Sequence[StackChange]) -> list[str]:
        """Return the role that a removal would have used, if the stack is to have none: it would outlive the update."""
        if not any((one.action, one.logical_id) == ("Remove", REMOVAL_ROLE) for one in changes):
            return []
        found = stacks.resources(self._cloud, self._found.stack_id)
        return [one.physical_id for one in found if one.logical_id == REMOVAL_ROLE and one.physical_id]


def follow(cloud: Aws, found: StackState) -> Iterator[StackEvent]:
    """Follow an update in progress. Raises StackFailed if it was taken back."""
    seen = stacks.events(cloud, found.stack_id, None)
    begun = [n for n, one in enumerate(seen) if (one.physical_id, one.status) == (found.stack_id, "UPDATE_IN_PROGRESS")]
    after = seen[begun[-1] - 1].event_id if begun and begun[-1] else None
    yield from _follow(cloud, found, after)


def _follow(cloud: Aws, found: StackState, after: str | None) -> Iterator[StackEvent]:
    deadline = Deadline.after(UP_DEADLINE_S, f"stack {found.name} to be updated")
    follower = Follower(Stack(cloud, found.name, found.stack_id), deadline, after)
    for events in follower.polls():
        yield from events
    if follower.state is None or follower.state.status != "UPDATE_COMPLETE":
        raise StackFailed(*_failure(found.name, follower), code="update-failed")


def _failure(name: str, follower: Follower) -> tuple[str, str]:
    cause = next((event for event in follower.seen if event.is_cause), None)
    status = follower.state.status if follower.state else "gone"
    reason = describe_cause(cause) if cause else f"the stack is {status}"
    hint = "Everything is as it was before; the nodes were not touched."
    return f"cluster {name} was not updated: {reason}", hint if status == "UPDATE_ROLLBACK_COMPLETE" else ""
