"""The stacks of the local cloud: creates, finds, updates, signals and deletes them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from localcloud.api import partitions
from localcloud.cloudformation import refusals, revisions, service_roles, validations
from localcloud.cloudformation.change_sets import IN_REVIEW, NO_CHANGES, ChangeSet, ChangeSets
from localcloud.cloudformation.errors import Refused
from localcloud.cloudformation.exports import Exports
from localcloud.cloudformation.functions import NO_VALUE, Scope, chosen, references
from localcloud.cloudformation.inputs import Input, read_inputs
from localcloud.cloudformation.model import Resource, Stack
from localcloud.cloudformation.revisions import Change, OtherTypes, Revision
from localcloud.cloudformation.signals import Signal
from localcloud.cloudformation.template import Declared, Template, parse
from localcloud.cloudformation.updater import Updater
from localcloud.context import Context


@dataclass(frozen=True)
class StackRequest:
    """A request to create or update a stack. `timeout_s` limits the whole creation (None: no limit).

    `parameters` are as given; those in `previous` keep the value that they have. Without `tags`, a stack keeps its own.
    """

    name: str
    region: str
    body: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    previous: Collection[str] = ()
    tags: Mapping[str, str] | None = None
    capabilities: Collection[str] = ()
    on_failure: str = "ROLLBACK"
    timeout_s: float | None = None
    protected: bool = False
    token: str | None = None
    role: str = ""


class Engine:
    """The stacks of one local cloud.

    `ssm(region, name)` returns the value of a parameter or raises KeyError; `zones(region)` returns zone names.
    """

    def __init__(self, context: Context, ssm: Callable[[str, str], str], zones: Callable[[str], list[str]]) -> None:
        self._context = context
        self._ssm = ssm
        self._zones = zones
        self._workers: dict[str, Updater] = {}
        self.change_sets = ChangeSets()
        self._lock = threading.Lock()

    @property
    def stacks(self) -> list[Stack]:
        """All stacks, including deleted ones, newest first."""
        return [worker.stack for worker in reversed(list(self._workers.values()))]

    def exports(self, region: str) -> Exports:
        """Return what the stacks of a region export."""
        return Exports(region, lambda: self.stacks)

    def create(self, request: StackRequest) -> Stack:
        """Start to create a stack, or raise Refused as CreateStack would."""
        worker = self._accept(request)
        if not worker.stack.status:
            worker.stack.validations = _stopping(validations.planted(_declared(worker.stack)))
            worker.create()
        return worker.stack

    def review(self, request: StackRequest, name: str, *, creates: bool) -> ChangeSet:
        """Add a change set of this name, for a new stack or for one that is there. Raises Refused as AWS does."""
        now, existing = self._context.clock.now(), self._taken(request)
        if creates and request.previous:
            raise Refused("Cannot specify UsePreviousValue on Parameters when ChangeSetType is CREATE")
        if existing is not None and existing.status != IN_REVIEW:
            if creates:
                again = f"already exists and cannot be created again with the changeSet [{name}]"
                raise Refused(f"Stack [{request.name}] {again}.")
            try:
                revision = self._revision(existing, request)
            except OtherTypes as refused:
                return self.change_sets.add(name, existing, now, refused.message, ())
            found = revisions.changes(existing, revision)
            failure = "" if self._is_change(existing, revision, found) else NO_CHANGES
            made = self.change_sets.add(name, existing, now, failure, tuple(found), revision)
            return self._validated(made, revision.wanted, revision.scope)
        if existing is None and not creates:
            raise Refused(f"Stack [{request.name}] does not exist")
        stack = existing or self._accept(request).stack
        if existing is None:
            stack.mark(IN_REVIEW, now, "User Initiated")
        added = tuple(Change("Add", name, resource.declared.type) for name, resource in stack.resources.items())
        made = self.change_sets.add(name, stack, now, "", added)
        return self._validated(made, _declared(stack), self._workers[stack.stack_id].scope)

    def _validated(self, made: ChangeSet, wanted: Mapping[str, Declared], scope: Scope) -> ChangeSet:
        """Validate a change set, which takes a while in bad weather (docs/aws-behaviour.md 11.21)."""
        added = {one.logical_id for one in made.changes if one.action == "Add"}
        found = validations.find(wanted, added, scope, made.stack.region, self._context.account)
        made.validations = tuple(found)
        if not made.failure and (failure := validations.failure(found)):
            made.failure, made.execution = failure, "UNAVAILABLE"
        draw = self._context.weather.draw("change-sets", made.stack.name)
        takes_s = draw.seconds(2, 60) if draw else validations.PLANTED.takes_s
        if draw and draw.happens(0.5):
            made.is_absent = self._until(draw.seconds(0, 5))
        if takes_s:
            made.is_pending = self._until(takes_s)
            if draw:
                self._context.weather.struck("change-sets", f"{made.name} of {made.stack.name} takes {takes_s:.1f} s")
        return made

    def _until(self, delay_s: float) -> Callable[[], bool]:
        """Return whether this delay has not passed yet."""
        end = self._context.clock.now() + timedelta(seconds=delay_s)
        return lambda: self._context.clock.now() < end

    def execute(self, change_set: ChangeSet, token: str | None = None) -> None:
        """Start to create or update the stack of a change set."""
        stack = change_set.stack
        if change_set.revision is not None:
            refusals.refuse_update(stack)
        self.change_sets.execute(change_set)
        if change_set.revision is None:
            self._workers[stack.stack_id].create()
        else:
            self._workers[stack.stack_id].update(replace(change_set.revision, token=token))

    def update(self, request: StackRequest) -> Stack:
        """Start to update a stack, or raise Refused as UpdateStack would."""
        stack = self._taken(request)
        if stack is None:
            raise Refused(f"Stack [{request.name}] does not exist")
        if request.token and stack.token == request.token:
            return stack
        revision = self._revision(stack, request)
        if not self._is_change(stack, revision, revisions.changes(stack, revision)):
            raise Refused("No updates are to be performed.")
        self.change_sets.retire(stack)
        self._workers[stack.stack_id].update(revision)
        return stack

    def cancel(self, stack: Stack) -> None:
        """Give up a stack's update."""
        if stack.status != "UPDATE_IN_PROGRESS":
            raise Refused("CancelUpdateStack cannot be called from current stack status")
        self._workers[stack.stack_id].cancel()

    def continue_rollback(self, stack: Stack) -> None:
        """Go on taking back a stack's update where that has failed."""
        if stack.status != "UPDATE_ROLLBACK_FAILED":
            raise Refused(f"Stack:{stack.stack_id} is in {stack.status} state and can not be rolled back further.")
        self._workers[stack.stack_id].continue_rollback()

    def _revision(self, stack: Stack, request: StackRequest) -> Revision:
        """Return what a request makes of a stack. Raises Refused for what AWS, or the local cloud, can't make of it."""
        refusals.refuse_update(stack)
        template = self.validated(request.body)
        role = service_roles.chosen(self._context, stack.role, request.role)
        inputs = self.inputs(template, with_previous(stack, request), request.region, role)
        refusals.refuse_capabilities(template, request.capabilities)
        # A request may name the stack by its id.
        scope = self._scope(replace(request, name=stack.name), stack.stack_id, template, inputs)
        wanted = selected(template, scope)
        revision = Revision(
            template,
            inputs,
            dict(stack.tags if request.tags is None else request.tags),
            list(request.capabilities),
            scope,
            wanted,
            {name: refusals.dependencies(declared, wanted) for name, declared in wanted.items()},
            request.token,
            role,
        )
        revisions.refuse_unserved(revisions.changes(stack, revision))
        return revision

    @staticmethod
    def _is_change(stack: Stack, revision: Revision, found: Collection[Change]) -> bool:
        return bool(found) or stack.tags != revision.tags or revisions.outputs_change(stack, revision)

    def _taken(self, request: StackRequest) -> Stack | None:
        # A deleted stack keeps its id.
        def is_it(stack: Stack) -> bool:
            named = request.name == stack.stack_id or (request.name == stack.name and not stack.gone)
            return named and stack.region == request.region

        return next((stack for stack in self.stacks if is_it(stack)), None)

    def _accept(self, request: StackRequest) -> Updater:
        """Add a stack without a status; return the worker of an earlier one if the same request was sent twice."""
        refusals.refuse_stack_name(request.name)
        template = self.validated(request.body)
        role = service_roles.chosen(self._context, "", request.role)
        inputs = self.inputs(template, request.parameters, request.region, role)
        refusals.refuse_capabilities(template, request.capabilities)
        with self._lock:
            taken = self._taken(request)
            # The same token means that the same request was sent twice.
            if taken and request.token and taken.token == request.token:
                return self._workers[taken.stack_id]
            if taken and taken.status != IN_REVIEW:
                raise Refused(f"Stack [{request.name}] already exists", "AlreadyExistsException")
            worker = self._worker(request, template, inputs, taken)
            self._workers[worker.stack.stack_id] = worker
            if taken:
                self.change_sets.outdate(taken, worker.stack)
        return worker

    def inputs(self, template: Template, given: Mapping[str, str], region: str, role: str) -> dict[str, Input]:
        """Return the template's parameters with their values, those of Systems Manager by the rights of the role."""

        def looked_up(name: str) -> str:
            service_roles.parameter(self._context, role, region, name)
            return self._ssm(region, name)

        return read_inputs(template, given, looked_up)

    @staticmethod
    def validated(body: str) -> Template:
        """Parse a template and check all that CreateStack checks about it alone."""
        template = parse(body)
        refusals.refuse_template(template)
        return template

    def _worker(
        self, request: StackRequest, template: Template, inputs: dict[str, Input], reviewed: Stack | None
    ) -> Updater:
        """Return the worker of a new stack, or of one in review, which keeps its id and its events."""
        place = f"{partitions.arn()}:cloudformation:{request.region}:{self._context.account}"
        made = f"{place}:stack/{request.name}/{uuid.uuid4()}"
        arn = reviewed.stack_id if reviewed else made
        scope = self._scope(request, arn, template, inputs)
        wanted = selected(template, scope)
        stack = Stack(
            stack_id=arn,
            name=request.name,
            region=request.region,
            template=template,
            inputs=inputs,
            created_at=self._context.clock.now(),
            tags=dict(request.tags or {}),
            capabilities=list(request.capabilities),
            on_failure=request.on_failure,
            timeout_s=request.timeout_s,
            protected=request.protected,
            token=request.token,
            role=request.role,
            resources={name: Resource(declared) for name, declared in wanted.items()},
            dependencies={name: refusals.dependencies(declared, wanted) for name, declared in wanted.items()},
            events=reviewed.events if reviewed else [],
        )
        return Updater(self._context, stack, scope, self.exports(request.region))

    def _scope(self, request: StackRequest, arn: str, template: Template, inputs: Mapping[str, Input]) -> Scope:
        pseudo = {
            "AWS::AccountId": self._context.account,
            "AWS::NotificationARNs": [],
            "AWS::NoValue": NO_VALUE,
            "AWS::Partition": partitions.played(),
            "AWS::Region": request.region,
            "AWS::StackId": arn,
            "AWS::StackName": request.name,
            "AWS::URLSuffix": partitions.domain(request.region),
        }
        return Scope(
            pseudo,
            {name: entry.value for name, entry in inputs.items()},
            template.mappings,
            template.conditions,
            zones=self._zones,
            parameter=lambda name: self._ssm(request.region, name),
            imported=self.exports(request.region).value,
        )

    def find(self, name_or_id: str, region: str) -> Stack:
        """Return a stack by name, or by id even if it is deleted (docs/aws-behaviour.md 1.21)."""
        if name_or_id in self._workers:
            return self._workers[name_or_id].stack
        for stack in self.stacks:
            if stack.name == name_or_id and stack.region == region and not stack.gone:
                return stack
        raise Refused(f"Stack with id {name_or_id} does not exist")

    def delete(self, stack: Stack, token: str | None = None, retain: Collection[str] = (), role: str = "") -> None:
        """Start to delete a stack, with the rights of `role` if it is given; do nothing if it is already gone."""
        if stack.gone:
            return
        if stack.protected:
            raise Refused(f"Stack [{stack.name}] cannot be deleted while TerminationProtection is enabled")
        if stack.status.startswith("UPDATE_") and stack.status.endswith("_IN_PROGRESS"):
            raise Refused(f"Stack [{stack.stack_id}] cannot be deleted while in status {stack.status}")
        if stack.status == IN_REVIEW:
            self.change_sets.retire(stack)
            stack.mark("DELETE_COMPLETE", self._context.clock.now())
            return
        if retain and stack.status != "DELETE_FAILED":
            raise Refused(f"Invalid operation on stack [{stack.name}]: RetainResources needs the state DELETE_FAILED")
        reason = self.exports(stack.region).use_of(stack)
        if reason:
            now, before = self._context.clock.now(), stack.status
            stack.mark("DELETE_IN_PROGRESS", now, "User Initiated")
            stack.mark(before, now, reason)
            return
        stack.role = service_roles.chosen(self._context, stack.role, role)
        self._workers[stack.stack_id].delete(token, retain)

    def signal_resource(self, stack: Stack, logical_id: str, signal: Signal) -> None:
        """Signal a resource that waits, in its creation or its rolling update (docs/aws-behaviour.md 1.8)."""
        if logical_id not in stack.resources:
            raise Refused(f"Resource {logical_id} does not exist for stack {stack.name}")
        resource = stack.resources[logical_id]
        policies = resource.declared.creation_policy or resource.declared.update_policy
        if resource.status not in ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS") or not policies:
            raise Refused(f"Resource {logical_id} is in {resource.status or 'no'} state and cannot be signaled")
        self._workers[stack.stack_id].signal(logical_id, signal)

    def signal_handle(self, handle: str, signal: Signal) -> bool:
        """Deliver a PUT to a wait handle's URL; return False when no stack has such a handle."""
        for worker in list(self._workers.values()):
            if any(
                resource.exists and resource.physical_id == handle for resource in list(worker.stack.resources.values())
            ):
                worker.signal(handle, signal)
                return True
        return False

    def idle(self) -> None:
        """Return when every stack has processed its messages (for tests and an orderly stop)."""
        for worker in list(self._workers.values()):
            worker.mailbox.join()


def _declared(stack: Stack) -> dict[str, Declared]:
    return {name: resource.declared for name, resource in stack.resources.items()}


def _stopping(found: Collection[validations.Validation]) -> list[validations.Validation]:
    return [one for one in found if one.mode == validations.FAIL]


def with_previous(stack: Stack, request: StackRequest) -> dict[str, str]:
    """Return a request's parameters, with the present values of those that are to keep them."""
    unknown = sorted(set(request.previous) - set(stack.inputs))
    if unknown:
        raise Refused(
            f"Invalid input for parameter key {unknown[0]}. Cannot specify usePreviousValue as true for a parameter "
            "key not in the previous template"
        )
    return {**request.parameters, **{key: stack.inputs[key].given for key in request.previous}}


def selected(template: Template, scope: Scope) -> dict[str, Declared]:
    """Return the resources whose conditions hold, with Fn::If resolved. Raises Refused for a dangling reference."""
    kept = {
        name: replace(item, properties=chosen(item.properties, scope))
        for name, item in template.resources.items()
        if item.condition is None or scope.condition(item.condition)
    }
    for item in kept.values():
        for reference in references([item.properties, item.metadata]):
            if reference.name in template.resources and reference.name not in kept:
                raise Refused(
                    f"Template format error: Unresolved resource dependencies [{reference.name}] "
                    "in the Resources block of the template"
                )
    return kept
