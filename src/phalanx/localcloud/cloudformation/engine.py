"""The stacks of the local cloud: creates, finds, signals and deletes them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from phalanx.localcloud import partitions
from phalanx.localcloud.cloudformation import refusals
from phalanx.localcloud.cloudformation.change_sets import (
    CANNOT_UPDATE,
    IN_REVIEW,
    NO_CHANGES,
    ChangeSet,
    ChangeSets,
)
from phalanx.localcloud.cloudformation.errors import Refused
from phalanx.localcloud.cloudformation.functions import NO_VALUE, Scope, chosen, references
from phalanx.localcloud.cloudformation.inputs import Input, read_inputs
from phalanx.localcloud.cloudformation.model import Resource, Stack
from phalanx.localcloud.cloudformation.signals import Signal
from phalanx.localcloud.cloudformation.template import Declared, Template, parse
from phalanx.localcloud.cloudformation.worker import Worker
from phalanx.localcloud.context import Context


@dataclass(frozen=True)
class StackRequest:
    """A CreateStack request. `parameters` are as given; `timeout_s` limits the whole creation (None: no limit)."""

    name: str
    region: str
    body: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    capabilities: Collection[str] = ()
    on_failure: str = "ROLLBACK"
    timeout_s: float | None = None
    protected: bool = False
    token: str | None = None


class Engine:
    """The stacks of one local cloud.

    `ssm(region, name)` returns the value of a parameter or raises KeyError; `zones(region)` returns zone names.
    """

    def __init__(self, context: Context, ssm: Callable[[str, str], str], zones: Callable[[str], list[str]]) -> None:
        self._context = context
        self._ssm = ssm
        self._zones = zones
        self._workers: dict[str, Worker] = {}
        self.change_sets = ChangeSets()
        self._lock = threading.Lock()

    @property
    def stacks(self) -> list[Stack]:
        """All stacks, including deleted ones, newest first."""
        return [worker.stack for worker in reversed(list(self._workers.values()))]

    def create(self, request: StackRequest) -> Stack:
        """Start to create a stack, or raise Refused as CreateStack would."""
        worker = self._accept(request)
        if not worker.stack.status:
            worker.create()
        return worker.stack

    def review(self, request: StackRequest, name: str) -> ChangeSet:
        """Add a change set of this name: with a new stack that it would create, or one that an existing stack fails."""
        now = self._context.clock.now()
        existing = self._taken(request)
        if existing and existing.status != IN_REVIEW:
            same = _is_same(existing, request)
            return self.change_sets.add(name, existing, now, NO_CHANGES if same else CANNOT_UPDATE)
        if existing:
            return self.change_sets.add(name, existing, now, "")
        stack = self._accept(request).stack
        stack.mark(IN_REVIEW, now, "User Initiated")
        return self.change_sets.add(name, stack, now, "")

    def execute(self, change_set: ChangeSet) -> None:
        """Start to create the stack of a change set."""
        self.change_sets.execute(change_set)
        self._workers[change_set.stack.stack_id].create()

    def _taken(self, request: StackRequest) -> Stack | None:
        def is_it(stack: Stack) -> bool:
            return stack.name == request.name and stack.region == request.region and not stack.gone

        return next((stack for stack in self.stacks if is_it(stack)), None)

    def _accept(self, request: StackRequest) -> Worker:
        """Add a stack without a status; return the worker of an earlier one if the same request was sent twice."""
        refusals.refuse_stack_name(request.name)
        template = self.validated(request.body)
        inputs = self.inputs(template, request.parameters, request.region)
        refusals.refuse_capabilities(template, request.capabilities)
        with self._lock:
            if taken := self._taken(request):
                # The same token means that the same request was sent twice.
                if request.token and taken.token == request.token:
                    return self._workers[taken.stack_id]
                raise Refused(f"Stack [{request.name}] already exists", "AlreadyExistsException")
            worker = self._worker(request, template, inputs)
            self._workers[worker.stack.stack_id] = worker
        return worker

    def inputs(self, template: Template, given: Mapping[str, str], region: str) -> dict[str, Input]:
        """Return the template's parameters with their values."""
        return read_inputs(template, given, lambda name: self._ssm(region, name))

    @staticmethod
    def validated(body: str) -> Template:
        """Parse a template and check all that CreateStack checks about it alone."""
        template = parse(body)
        refusals.refuse_template(template)
        return template

    def _worker(self, request: StackRequest, template: Template, inputs: dict[str, Input]) -> Worker:
        arn = f"arn:aws:cloudformation:{request.region}:{self._context.account}:stack/{request.name}/{uuid.uuid4()}"
        scope = self._scope(request, arn, template, inputs)
        wanted = selected(template, scope)
        stack = Stack(
            stack_id=arn,
            name=request.name,
            region=request.region,
            template=template,
            inputs=inputs,
            created_at=self._context.clock.now(),
            tags=dict(request.tags),
            capabilities=list(request.capabilities),
            on_failure=request.on_failure,
            timeout_s=request.timeout_s,
            protected=request.protected,
            token=request.token,
            resources={name: Resource(declared) for name, declared in wanted.items()},
            dependencies={name: refusals.dependencies(declared, wanted) for name, declared in wanted.items()},
        )
        return Worker(self._context, stack, scope)

    def _scope(self, request: StackRequest, arn: str, template: Template, inputs: Mapping[str, Input]) -> Scope:
        pseudo = {
            "AWS::AccountId": self._context.account,
            "AWS::NotificationARNs": [],
            "AWS::NoValue": NO_VALUE,
            "AWS::Partition": "aws",
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
        )

    def find(self, name_or_id: str, region: str) -> Stack:
        """Return a stack by name, or by id even if it is deleted (docs/aws-behaviour.md 1.21)."""
        if name_or_id in self._workers:
            return self._workers[name_or_id].stack
        for stack in self.stacks:
            if stack.name == name_or_id and stack.region == region and not stack.gone:
                return stack
        raise Refused(f"Stack with id {name_or_id} does not exist")

    def delete(self, stack: Stack, token: str | None = None, retain: Collection[str] = ()) -> None:
        """Start to delete a stack; do nothing if it is already gone."""
        if stack.gone:
            return
        if stack.protected:
            raise Refused(f"Stack [{stack.name}] cannot be deleted while TerminationProtection is enabled")
        if stack.status == IN_REVIEW:
            stack.mark("DELETE_COMPLETE", self._context.clock.now())
            return
        if retain and stack.status != "DELETE_FAILED":
            raise Refused(f"Invalid operation on stack [{stack.name}]: RetainResources needs the state DELETE_FAILED")
        self._workers[stack.stack_id].delete(token, retain)

    def signal_resource(self, stack: Stack, logical_id: str, signal: Signal) -> None:
        """Signal a resource with a CreationPolicy while it is being created (docs/aws-behaviour.md 1.8)."""
        if logical_id not in stack.resources:
            raise Refused(f"Resource {logical_id} does not exist for stack {stack.name}")
        resource = stack.resources[logical_id]
        if resource.status != "CREATE_IN_PROGRESS" or not resource.declared.creation_policy:
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


def _is_same(stack: Stack, request: StackRequest) -> bool:
    """Whether a request has the template and the parameters that the stack has."""
    given = {key: entry.given for key, entry in stack.inputs.items()}
    return stack.template.body == request.body and {**given, **request.parameters} == given


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
