"""Takes one stack through updates: from one revision to the next, and back if a resource can't be changed.

The order is CloudFormation's: what is new is made before anything old is deleted, in a clean-up at the end, so that an
update can be undone until then (docs/aws-behaviour.md 1.30).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from localcloud import autoscaling
from localcloud.cloudformation import service_roles
from localcloud.cloudformation.errors import ResourceFailed, reason_of
from localcloud.cloudformation.exports import Exports
from localcloud.cloudformation.functions import Scope, resolve
from localcloud.cloudformation.graph import Walk
from localcloud.cloudformation.model import Resource, Stack
from localcloud.cloudformation.resources import TYPES
from localcloud.cloudformation.revisions import Revision
from localcloud.cloudformation.rolling import POLICY, Policy, Rolling
from localcloud.cloudformation.schemas import custom_name, replaces, takes_tags
from localcloud.cloudformation.signals import Signal
from localcloud.cloudformation.worker import MODELS, Worker
from localcloud.context import Context

REPLACING = "Requested update requires the creation of a new physical resource; hence creating one."
LEFT = "One or more resources could not be deleted."
UPDATING, ROLLING_BACK = "UPDATE_IN_PROGRESS", "UPDATE_ROLLBACK_IN_PROGRESS"


class Updater(Worker):
    """A worker that can also update its stack."""

    def __init__(self, context: Context, stack: Stack, scope: Scope, exports: Exports) -> None:
        super().__init__(context, stack, scope, exports)
        # What the stack was before the update, where it comes from (in a rollback: the update), and what it is to be.
        self._before = self._from = self._aim = self._present()
        # Resources as they were before they were replaced, and those that the clean-up deletes, by logical id.
        self._replaced: dict[str, Resource] = {}
        self._old: dict[str, Resource] = {}
        self._rolling: dict[str, Rolling] = {}

    def update(self, revision: Revision) -> None:
        """Start an update; the stack is UPDATE_IN_PROGRESS when this returns."""
        self.stack.role = revision.role
        self._may = service_roles.rights(self.context, self.stack)
        self.stack.token, self.stack.updated_at = revision.token, self.context.clock.now()
        self._mark(UPDATING, "User Initiated")
        self.post(self._begin_update, revision)

    def cancel(self) -> None:
        """Give up an update; the stack rolls back, unless the update ends first."""
        self.post(self._roll_back, "User Initiated")

    def continue_rollback(self) -> None:
        """Go on taking an update back; the stack is UPDATE_ROLLBACK_IN_PROGRESS when this returns."""
        self._may = service_roles.rights(self.context, self.stack)
        self._mark(ROLLING_BACK, "User Initiated")
        self.post(self._go_to, self._before)

    def _begin_update(self, revision: Revision) -> None:
        self._before, self._replaced, self._old = self._present(), {}, {}
        self._go_to(revision)

    def _present(self) -> Revision:
        stack = self.stack
        wanted = {name: resource.declared for name, resource in stack.resources.items()}
        return Revision(
            stack.template, stack.inputs, stack.tags, stack.capabilities, self._scope, wanted, stack.dependencies
        )

    def _go_to(self, revision: Revision) -> None:
        """Set what the stack is to be, and begin with the first resources."""
        stack, there = self.stack, self.stack.resources
        self._from, self._aim = self._present(), revision
        kept = {name: there.get(name) or Resource(declared) for name, declared in revision.wanted.items()}
        for name, declared in revision.wanted.items():
            kept[name].declared = declared
        stack.resources = kept | {name: one for name, one in there.items() if name not in kept}
        stack.template, stack.inputs, stack.tags = revision.template, revision.inputs, revision.tags
        stack.capabilities, stack.dependencies = revision.capabilities, revision.dependencies
        self._scope = revision.scope
        stack.imports = revision.scope.imports
        self._walk = Walk(revision.dependencies)
        self._advance()

    # ---- one resource

    def _begin(self, name: str) -> None:
        resource = self.stack.resources[name]
        if name in self._replaced:
            self._restore(name)
        elif self.stack.status == "CREATE_IN_PROGRESS" or not resource.exists:
            super()._begin(name)
        else:
            self._revise(name, resource)

    def _revise(self, name: str, resource: Resource) -> None:
        """Change a resource that is there as far as it differs from what is wanted."""
        try:
            wanted = self._properties(resource.declared)
            metadata = resolve(dict(resource.declared.metadata), self._scope)
        except Exception as error:
            self._mark_resource(name, UPDATING)
            self._fail(name, reason_of(error))
            return
        if self._is_replaced(resource, wanted):
            self._replaced[name] = copy.copy(resource)
            self._mark_resource(name, UPDATING, REPLACING)
            self._try(name, self._replace)
        elif self._is_touched(resource, wanted) or resource.metadata != metadata:
            resource.metadata = metadata
            self._mark_resource(name, UPDATING)
            self._try(name, lambda one: self._change(one, wanted))
        else:
            self._publish(resource)
            self._walk.done(name)

    def _is_replaced(self, resource: Resource, wanted: dict[str, Any]) -> bool:
        """Whether a change makes another physical resource: as AWS's schema or the group's update policy says."""
        policy = resource.declared.update_policy.get("AutoScalingReplacingUpdate") or {}
        will = str(policy.get("WillReplace", "false")).lower() == "true" and resource.properties != wanted
        return will or replaces(resource.declared.type, resource.properties, wanted)

    def _is_touched(self, resource: Resource, wanted: dict[str, Any]) -> bool:
        retagged = self._from.tags != self.stack.tags and takes_tags(resource.declared.type)
        return resource.properties != wanted or retagged or resource.status == "UPDATE_FAILED"

    def _change(self, resource: Resource, wanted: dict[str, Any]) -> bool:
        """Change a resource in place."""
        kind, touched = TYPES[resource.declared.type], self._is_touched(resource, wanted)
        before = self._request(resource, self._from.tags)
        resource.properties = wanted
        if touched and kind.update is None:
            raise ResourceFailed(f"The local cloud can't change {resource.declared.type} in place")
        if touched and kind.update is not None:
            self._require_rights(resource, "update")
            with MODELS:
                attributes = kind.update(self._request(resource), before, resource.physical_id)
            resource.attributes = resource.attributes if attributes is None else attributes
            self.context.network_changed()
        self._publish(resource)
        return POLICY in resource.declared.update_policy and self._roll(resource)

    def _roll(self, resource: Resource) -> bool:
        """Begin a rolling update of a group; return whether its end is pending."""
        name = resource.declared.logical_id
        rolling = self._rolling[name] = Rolling(
            Policy.of(resolve(dict(resource.declared.update_policy), self._scope)),
            autoscaling.members_of(self.stack.region, resource.physical_id),
            say=lambda reason: self._mark_resource(name, resource.status, reason),
            post=lambda step, *args: self.post(self._roll_on, name, rolling, step, args),
            later=lambda delay_s, step: self._later(name, delay_s, self._roll_on, name, rolling, step, ()),
            end=lambda error: self._rolled(name, error),
        )
        # What the group's own change reports is not the end of this.
        self._attempts[name] = rolling
        rolling.post(rolling.begin)
        return True

    def _roll_on(self, name: str, rolling: Rolling, step: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Take a step of a rolling update, unless the stack has given it up."""
        if self._rolling.get(name) is rolling and self._attempts.get(name) is rolling:
            step(*args)
        else:
            rolling.members.resume(rolling.policy.suspended)

    def _rolled(self, name: str, error: str | None) -> None:
        del self._rolling[name]
        if error:
            self._fail(name, error)
        else:
            self._complete(name)
            self._advance()

    def _receive(self, target: str, signal: Signal) -> None:
        if target in self._rolling:
            self._rolling[target].receive(signal)
        else:
            super()._receive(target, signal)

    def _replace(self, resource: Resource) -> bool:
        """Make another physical resource; the old one is deleted in the clean-up."""
        name = custom_name(resource.declared.type, resource.properties, self._properties(resource.declared))
        if name:
            raise ResourceFailed(
                "CloudFormation cannot update a stack when a custom-named resource requires replacing. "
                f"Rename {name} and update the stack again."
            )
        self._old[resource.declared.logical_id] = self._replaced[resource.declared.logical_id]
        return self._make(resource)

    def _restore(self, name: str) -> None:
        """Undo a replacement."""
        new, old = self.stack.resources[name], self._replaced.pop(name)
        if new.physical_id != old.physical_id:
            self._old[name] = copy.copy(new)
        else:
            self._old.pop(name, None)
        self.stack.resources[name] = old
        self._publish(old)
        self._mark_resource(name, "UPDATE_COMPLETE")
        self._walk.done(name)

    # ---- the end

    def _abort(self, reason: str) -> None:
        if self.stack.status == UPDATING:
            self._roll_back(f"{reason}. ")
        elif self.stack.status == ROLLING_BACK:
            self._cancel()
            self._mark("UPDATE_ROLLBACK_FAILED", reason)
        else:
            super()._abort(reason)

    def _roll_back(self, reason: str) -> None:
        """Undo an update that has not ended."""
        if self.stack.status == UPDATING:
            self._cancel()
            self._mark(ROLLING_BACK, reason)
            self._old = {}
            self._go_to(self._before)

    def _end(self) -> None:
        if self.stack.status == "CREATE_IN_PROGRESS":
            super()._end()
        else:
            self._clean_up("UPDATE_ROLLBACK" if self.stack.status == ROLLING_BACK else "UPDATE")

    def _clean_up(self, final: str) -> None:
        """Delete what the stack no longer has."""
        self._mark(f"{final}_COMPLETE_CLEANUP_IN_PROGRESS")
        there = reversed(self.stack.resources.items())
        removed = {name: one for name, one in there if name not in self._aim.wanted and one.exists}
        self._delete_all(final, {**removed, **self._old}, self._from.dependencies)

    def _finish_deletion(self) -> None:
        if not self.stack.status.endswith("_CLEANUP_IN_PROGRESS"):
            super()._finish_deletion()
            return
        self.stack.resources = {name: self.stack.resources[name] for name in self._aim.wanted}
        self._doomed, self._replaced, self._old = {}, {}, {}
        self._mark(f"{self._final}_COMPLETE", LEFT if self._failed else "")

    def _is_kept(self, resource: Resource) -> bool:
        if self._old.get(resource.declared.logical_id) is resource and self._final == "UPDATE":
            return resource.declared.update_replace_policy != "Delete"
        return super()._is_kept(resource)
