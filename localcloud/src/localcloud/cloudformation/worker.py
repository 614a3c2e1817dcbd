"""Takes one stack through creation, rollback and deletion, on one thread that handles messages in order.

Nothing here sleeps: a resource that takes time to settle (a group, a wait) reports its end in a message.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from localcloud.clock import Timer
from localcloud.cloudformation import rights, service_roles
from localcloud.cloudformation.errors import ResourceFailed, reason_of
from localcloud.cloudformation.exports import Exports
from localcloud.cloudformation.functions import Scope, resolve
from localcloud.cloudformation.graph import Walk, reverse
from localcloud.cloudformation.model import Resource, Stack
from localcloud.cloudformation.resources import TYPES, Request
from localcloud.cloudformation.schemas import problems
from localcloud.cloudformation.signals import MISSED, RECEIVED, Signal, Wait, data_text, wait_of
from localcloud.cloudformation.template import Declared
from localcloud.cloudformation.validations import STACK_FAILED
from localcloud.context import Context
from localcloud.iam import keys, middleware
from localcloud.iam.credentials import May

CANCELLED = {"CREATE": "Resource creation cancelled", "UPDATE": "Resource update cancelled"}
# moto's models are plain dictionaries: two stacks that change them at once would break each other's iterations.
MODELS = threading.Lock()
# The stack's statuses in which resources are made or changed.
BUILDING = ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "UPDATE_ROLLBACK_IN_PROGRESS")
RETAINED = {"Retain": True, "RetainExceptOnCreate": False}  # → whether rolling back a creation keeps it too
# Of one resource or wait handle: more than a group has instances.
MOST_SIGNALS = 2000
log = logging.getLogger(__name__)


class Mailbox:
    """What a worker of a stack is built on."""

    def __init__(self, context: Context, stack: Stack) -> None:
        self.context = context
        self.stack = stack
        self.mailbox: queue.Queue[Callable[[], None]] = queue.Queue()
        self._timers: dict[str, Timer] = {}

    def post(self, step: Callable[..., None], *args: Any) -> None:
        """Queue a step for the stack's thread, which ends with the stack."""
        if not self.stack.gone:
            self.mailbox.put(functools.partial(step, *args))

    def _run(self) -> None:
        while not (self.stack.gone and self.mailbox.empty()):
            self._work(self.mailbox.get())

    def _work(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            log.exception("stack %s", self.stack.name)
        finally:
            self.mailbox.task_done()

    def _later(self, name: str, delay_s: float, step: Callable[..., None], *args: Any) -> None:
        self._timers[name] = self.context.clock.call_later(delay_s, self.post, step, *args)

    def _cancel_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer:
            timer.cancel()

    def _mark(self, status: str, reason: str = "") -> None:
        self.stack.mark(status, self.context.clock.now(), reason)

    def _mark_resource(self, name: str, status: str, reason: str = "") -> None:
        self.stack.mark_resource(self.stack.resources[name], status, self.context.clock.now(), reason)


class Worker(Mailbox):
    """The worker of one stack. Every method with a leading underscore runs on the stack's own thread."""

    def __init__(self, context: Context, stack: Stack, scope: Scope, exports: Exports) -> None:
        super().__init__(context, stack)
        self._scope = scope
        stack.imports = scope.imports
        self._exports = exports
        self._walk = Walk({})
        self._attempts: dict[str, object] = {}
        self._waits: dict[str, Wait] = {}
        self._signals: dict[str, dict[str, Signal]] = {}
        # What is being deleted, by logical id, and what of it could not be.
        self._doomed: dict[str, Resource] = {}
        self._failed: list[str] = []
        self._final = ""
        self._retain: Collection[str] = ()
        # CloudFormation acts with the rights of the caller who asked for the operation, to its end.
        self._may: May | None = None

    def create(self) -> None:
        """Start the creation; the stack is CREATE_IN_PROGRESS when this returns."""
        self._may = service_roles.rights(self.context, self.stack)
        self.stack.mark("CREATE_IN_PROGRESS", self.context.clock.now(), "User Initiated")
        self.context.spawn(self._run, name=f"stack-{self.stack.name}")
        self.post(*([self._abort, STACK_FAILED] if self.stack.validations else [self._begin_creation]))

    @property
    def scope(self) -> Scope:
        """The values of names in the template."""
        return self._scope

    def delete(self, token: str | None, retain: Collection[str]) -> None:
        """Start the deletion, whatever the stack is doing; its status has changed when this returns."""
        begun, self._may = threading.Event(), service_roles.rights(self.context, self.stack)
        self.post(self._begin_deletion, token, retain, begun)
        begun.wait(timeout=30)

    def signal(self, target: str, signal: Signal) -> None:
        """Deliver a signal for a wait handle or a resource."""
        self.post(self._receive, target, signal)

    # ---- creation

    def _begin_creation(self) -> None:
        if self.stack.timeout_s:
            self._later("", self.stack.timeout_s, self._abort, "Stack creation time exceeded the specified timeout")
        self._walk = Walk(self.stack.dependencies)
        self._advance()

    def _is_building(self, walk: Walk) -> bool:
        """Whether the operation that goes along this walk still goes on."""
        return walk is self._walk and self.stack.status in BUILDING

    def _advance(self) -> None:
        """Begin with all resources whose dependencies are done, until no more are ready."""
        walk = self._walk
        while self._is_building(walk) and (names := walk.ready()):
            for name in names:
                if self._is_building(walk):
                    self._begin(name)
        if self._is_building(walk) and not walk.running:
            self._finish()

    def _begin(self, name: str) -> None:
        """Create a resource."""
        self._mark_resource(name, "CREATE_IN_PROGRESS")
        self._try(name, self._make)

    def _try(self, name: str, step: Callable[[Resource], bool]) -> None:
        """Take a step with a resource, which returns whether its end is pending."""
        try:
            pending = step(self.stack.resources[name])
        except Exception as error:
            self._fail(name, reason_of(error))
            return
        if not pending:
            self._complete(name)

    def _make(self, resource: Resource) -> bool:
        """Create a resource; return True when it is still pending."""
        declared, name = resource.declared, resource.declared.logical_id
        resource.properties = self._properties(declared)
        resource.metadata = resolve(dict(declared.metadata), self._scope)
        self._require_rights(resource, "create")
        wait = wait_of(name, declared.type, resource.properties, resolve(dict(declared.creation_policy), self._scope))
        with MODELS:
            made = TYPES[declared.type].create(self._request(resource))
        self.context.network_changed()
        resource.physical_id, resource.attributes = made.physical_id, made.attributes
        self._publish(resource)
        self._mark_resource(name, resource.status, "Resource creation Initiated")
        if wait:
            self._waits[name] = wait
            self._later(name, wait.timeout_s, self._wait_timed_out, name, self._attempts[name])
            self.post(self._check_signals, name)
        return made.pending or wait is not None

    def _properties(self, declared: Declared) -> dict[str, Any]:
        """Return a resource's properties with their values. Raises ResourceFailed if the type does not take them."""
        properties = resolve(dict(declared.properties), self._scope)
        wrong = problems(declared.type, properties)
        if wrong:
            named = f"resource {declared.logical_id} with message: {'; '.join(wrong)}"
            raise ResourceFailed(f"Properties validation failed for {named}")
        return properties

    def _publish(self, resource: Resource) -> None:
        """Let other resources refer to this one."""
        name = resource.declared.logical_id
        self._scope.references[name], self._scope.attributes[name] = resource.physical_id, resource.attributes

    def _require_rights(self, resource: Resource, doing: str) -> None:
        kind, place = resource.declared.type, f"{self.stack.region}:{self.context.account}"
        stack, properties = self.stack, resource.properties
        if doing == "create":
            keys.require(self.context, kind, stack.region, properties, f"{stack.name}-{resource.declared.logical_id}")
        for named in rights.names_of(kind, resource.physical_id, properties):
            bound = middleware.boundary_of(self.context, named) if kind == "AWS::IAM::Policy" else ""
            rights.require(self._may, kind, stack.name, place, stack.tags, doing, named, properties, bound)

    def _request(self, resource: Resource, stack_tags: Mapping[str, str] | None = None) -> Request:
        name, stack = resource.declared.logical_id, self.stack
        attempt = self._attempts[name] = object()
        tags = {
            "aws:cloudformation:stack-name": stack.name,
            "aws:cloudformation:stack-id": stack.stack_id,
            "aws:cloudformation:logical-id": name,
            **(stack.tags if stack_tags is None else stack_tags),
        }
        return Request(
            context=self.context,
            region=stack.region,
            stack_name=stack.name,
            stack_id=stack.stack_id,
            logical_id=name,
            properties=resource.properties,
            tags=tags,
            settled=lambda error: self.post(self._settled, name, attempt, error),
            retained=resource.declared.deletion_policy in RETAINED,
            update_policy=resource.declared.update_policy,
        )

    def _settled(self, name: str, attempt: object, error: str | None) -> None:
        if self._attempts.get(name) is not attempt:
            return
        if name in self._doomed:
            self._deleted(name, error)
            self._delete_ready()
        elif error:
            self._fail(name, error)
        elif name not in self._waits:
            self._complete(name)
            self._advance()

    def _complete(self, name: str) -> None:
        self._forget(name)
        self._mark_resource(name, f"{self._doing(name)}_COMPLETE")
        self._walk.done(name)

    def _doing(self, name: str) -> str:
        """Return what is done with a resource, as its status has it: CREATE or UPDATE."""
        return self.stack.resources[name].status.partition("_")[0]

    def _forget(self, name: str) -> None:
        self._attempts.pop(name, None)
        self._waits.pop(name, None)
        self._cancel_timer(name)

    def _fail(self, name: str, reason: str) -> None:
        self._forget(name)
        doing = self._doing(name)
        self._mark_resource(name, f"{doing}_FAILED", reason)
        self._abort(f"The following resource(s) failed to {doing.lower()}: [{name}]")

    def _finish(self) -> None:
        """End the creation, or give it up if an output has no value."""
        try:
            outputs = self._outputs()
            self._exports.check(self.stack, outputs)
            self.stack.outputs = outputs
        except Exception as error:
            self._abort(reason_of(error))
            return
        self._forget("")
        self._end()

    def _end(self) -> None:
        self._mark("CREATE_COMPLETE")

    def _outputs(self) -> list[dict[str, str]]:
        outputs = []
        for key, output in self.stack.template.outputs.items():
            if "Condition" in output and not self._scope.condition(output["Condition"]):
                continue
            shown = {"OutputKey": key, "OutputValue": str(resolve(output["Value"], self._scope))}
            if "Description" in output:
                shown["Description"] = str(output["Description"])
            if "Export" in output:
                shown["ExportName"] = str(resolve(output["Export"], self._scope).get("Name", ""))
            outputs.append(shown)
        return outputs

    # ---- signals

    def _receive(self, target: str, signal: Signal) -> None:
        received = self._signals.setdefault(target, {})
        is_new = signal.unique_id not in received
        if is_new and len(received) >= MOST_SIGNALS:
            return
        received.setdefault(signal.unique_id, signal)
        if target in self.stack.resources and is_new:
            status = self.stack.resources[target].status
            self._mark_resource(target, status, RECEIVED.format(signal.status, signal.unique_id))
        for name in [name for name, wait in self._waits.items() if wait.target == target]:
            self._check_signals(name)

    def _check_signals(self, name: str) -> None:
        wait = self._waits.get(name)
        if wait is None or self.stack.status not in BUILDING:
            return
        received = self._signals.get(wait.target, {}).values()
        failure = wait.failure(received)
        if failure:
            self._fail(name, failure)
        elif len(received) >= wait.count:
            if wait.is_condition:
                resource = self.stack.resources[name]
                resource.attributes = {**resource.attributes, "Data": data_text(received)}
                self._scope.attributes[name] = resource.attributes
            self._complete(name)
            self._advance()

    def _wait_timed_out(self, name: str, attempt: object) -> None:
        if self._attempts.get(name) is attempt and name in self._waits:
            wait = self._waits[name]
            received = self._signals.get(wait.target, {}).values()
            if wait.is_group:
                missing = wait.count - len(received)
                self._mark_resource(name, self.stack.resources[name].status, MISSED.format(missing))
            failure = wait.timeout(received)
            if failure:
                self._fail(name, failure)
            else:
                self._complete(name)
                self._advance()

    # ---- giving up, rolling back, deleting

    def _abort(self, reason: str) -> None:
        """Give up a creation that can't succeed: cancel the rest, then do what `on_failure` says."""
        if self.stack.status != "CREATE_IN_PROGRESS":
            return
        verdicts = {
            "ROLLBACK": ("ROLLBACK_IN_PROGRESS", f"{reason}. Rollback requested by user."),
            "DELETE": ("DELETE_IN_PROGRESS", f"{reason}. Delete requested by user."),
            "DO_NOTHING": ("CREATE_FAILED", f"{reason}. "),
        }
        self._cancel()
        status, text = verdicts[self.stack.on_failure]
        self._mark(status, text)
        if status != "CREATE_FAILED":
            self._tear_down("ROLLBACK" if status.startswith("ROLLBACK") else "DELETE")

    def _cancel(self) -> None:
        self._walk.stop()
        self._forget("")
        for name, resource in self.stack.resources.items():
            if resource.status in ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS"):
                self._forget(name)
                doing = self._doing(name)
                self._mark_resource(name, f"{doing}_FAILED", CANCELLED[doing])

    def _begin_deletion(self, token: str | None, retain: Collection[str], begun: threading.Event) -> None:
        before = self.stack.status
        if before not in ("DELETE_IN_PROGRESS", "DELETE_COMPLETE"):
            self.stack.token, self._retain = token, retain
            self._mark("DELETE_IN_PROGRESS", "User Initiated")
        begun.set()
        if before == "CREATE_IN_PROGRESS":
            self._cancel()
        if before == "ROLLBACK_IN_PROGRESS":
            self._final = "DELETE"  # the rollback in progress continues as the deletion
        elif before not in ("DELETE_IN_PROGRESS", "DELETE_COMPLETE"):
            self._tear_down("DELETE")

    def _tear_down(self, final: str) -> None:
        there = {name: resource for name, resource in reversed(self.stack.resources.items()) if resource.exists}
        self._delete_all(final, there, self.stack.dependencies)

    def _delete_all(self, final: str, doomed: dict[str, Resource], dependencies: Mapping[str, Collection[str]]) -> None:
        """Delete these resources, what depends on others first; the stack's next status is that of `final`."""
        self._final, self._failed, self._doomed = final, [], doomed
        turned = reverse(dependencies)
        self._walk = Walk({name: turned.get(name, set()) & doomed.keys() for name in doomed})
        self._delete_ready()

    def _delete_ready(self) -> None:
        while names := self._walk.ready():
            for name in names:
                self._delete(name)
        if not self._walk.running:
            self._finish_deletion()

    def _delete(self, name: str) -> None:
        resource = self._doomed[name]
        if self._is_kept(resource):
            self._mark_doomed(name, "DELETE_SKIPPED")
            self._walk.done(name)
            return
        self._mark_doomed(name, "DELETE_IN_PROGRESS")
        try:
            self._require_rights(resource, "delete")
            with MODELS:
                pending = TYPES[resource.declared.type].delete(self._request(resource), resource.physical_id)
            self.context.network_changed()
        except Exception as error:
            self._deleted(name, reason_of(error))
        else:
            if not pending:
                self._deleted(name, None)

    def _is_kept(self, resource: Resource) -> bool:
        # docs/aws-behaviour.md 1.18
        policy = resource.declared.deletion_policy
        rolling_back = self._final.endswith("ROLLBACK")
        return resource.declared.logical_id in self._retain or (
            policy in RETAINED and (RETAINED[policy] or not rolling_back)
        )

    def _mark_doomed(self, name: str, status: str, reason: str = "") -> None:
        self.stack.mark_resource(self._doomed[name], status, self.context.clock.now(), reason)

    def _deleted(self, name: str, error: str | None) -> None:
        self._attempts.pop(name, None)
        if error:
            self._mark_doomed(name, "DELETE_FAILED", error)
            self._failed.append(name)
        else:
            self._mark_doomed(name, "DELETE_COMPLETE")
        # What it depends on is deleted whether it could be or not (docs/aws-behaviour.md 1.36).
        self._walk.done(name)

    def _finish_deletion(self) -> None:
        self._doomed = {}
        if self._failed:
            self._mark(
                f"{self._final}_FAILED", f"The following resource(s) failed to delete: [{', '.join(self._failed)}]. "
            )
            return
        self._mark(f"{self._final}_COMPLETE")
