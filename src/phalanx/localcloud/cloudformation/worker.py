"""Takes one stack through creation, rollback and deletion, on one thread that handles messages in order.

Nothing here sleeps: a resource that takes time to settle (a group, a wait) reports its end in a message.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Callable, Collection
from typing import Any

from moto.core.exceptions import ServiceException
from werkzeug.exceptions import HTTPException

from phalanx.localcloud.clock import Timer
from phalanx.localcloud.cloudformation import rights
from phalanx.localcloud.cloudformation.errors import Refused, ResourceFailed
from phalanx.localcloud.cloudformation.functions import Scope, resolve
from phalanx.localcloud.cloudformation.graph import Walk, reverse
from phalanx.localcloud.cloudformation.model import Resource, Stack
from phalanx.localcloud.cloudformation.resources import TYPES, Request
from phalanx.localcloud.cloudformation.schemas import problems
from phalanx.localcloud.cloudformation.signals import Signal, Wait, data_text, wait_of
from phalanx.localcloud.context import Context
from phalanx.localcloud.iam import credentials
from phalanx.localcloud.iam.credentials import May

log = logging.getLogger(__name__)

CANCELLED = "Resource creation cancelled"
# moto's models are plain dictionaries: two stacks that change them at once would break each other's iterations.
_MODELS = threading.Lock()
RETAINED = {"Retain": True, "RetainExceptOnCreate": False}  # → whether rolling back a creation keeps it too


class Worker:
    """The worker of one stack. Every method with a leading underscore runs on the stack's own thread."""

    def __init__(self, context: Context, stack: Stack, scope: Scope) -> None:
        self.context = context
        self.stack = stack
        self.mailbox: queue.Queue[Callable[[], None]] = queue.Queue()
        self._scope = scope
        self._walk = Walk({})
        self._attempts: dict[str, object] = {}
        self._waits: dict[str, Wait] = {}
        self._timers: dict[str, Timer] = {}
        self._signals: dict[str, dict[str, Signal]] = {}
        self._failed: list[str] = []
        self._final = ""
        self._retain: Collection[str] = ()
        # CloudFormation acts with the rights of the caller who asked for the operation, to its end.
        self._may: May | None = None

    def create(self) -> None:
        """Start the creation; the stack is CREATE_IN_PROGRESS when this returns."""
        self._may = credentials.may()
        self.stack.mark("CREATE_IN_PROGRESS", self.context.clock.now(), "User Initiated")
        self.context.spawn(self._run, name=f"stack-{self.stack.name}")
        self.post(self._begin_creation)

    def delete(self, token: str | None, retain: Collection[str]) -> None:
        """Start the deletion, whatever the stack is doing; its status has changed when this returns."""
        begun, self._may = threading.Event(), credentials.may()
        self.post(self._begin_deletion, token, retain, begun)
        begun.wait(timeout=30)

    def signal(self, target: str, signal: Signal) -> None:
        """Deliver a signal for a wait handle or a resource."""
        self.post(self._receive, target, signal)

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

    def _mark(self, status: str, reason: str = "") -> None:
        self.stack.mark(status, self.context.clock.now(), reason)

    def _mark_resource(self, name: str, status: str, reason: str = "") -> None:
        self.stack.mark_resource(self.stack.resources[name], status, self.context.clock.now(), reason)

    # ---- creation

    def _begin_creation(self) -> None:
        if self.stack.timeout_s:
            self._later("", self.stack.timeout_s, self._abort, "Stack creation time exceeded the specified timeout")
        self._walk = Walk(self.stack.dependencies)
        self._create_ready()

    @property
    def _creating(self) -> bool:
        return self.stack.status == "CREATE_IN_PROGRESS"

    def _create_ready(self) -> None:
        """Create all resources whose dependencies exist, until no more are ready."""
        while self._creating and (names := self._walk.ready()):
            for name in names:
                if self._creating:
                    self._create(name)
        if self._creating and not self._walk.running:
            self._finish_creation()

    def _create(self, name: str) -> None:
        resource = self.stack.resources[name]
        self._mark_resource(name, "CREATE_IN_PROGRESS")
        try:
            pending = self._make(resource)
        except Exception as error:
            self._creation_failed(name, reason_of(error))
            return
        if not pending:
            self._created(name)

    def _make(self, resource: Resource) -> bool:
        """Create a resource; return True when it is still pending."""
        declared, name = resource.declared, resource.declared.logical_id
        resource.properties = resolve(dict(declared.properties), self._scope)
        resource.metadata = resolve(dict(declared.metadata), self._scope)
        wrong = problems(declared.type, resource.properties)
        if wrong:
            raise ResourceFailed(f"Properties validation failed for resource {name} with message: {'; '.join(wrong)}")
        self._require_rights(declared.type, deleting=False)
        wait = wait_of(name, declared.type, resource.properties, resolve(dict(declared.creation_policy), self._scope))
        with _MODELS:
            made = TYPES[declared.type].create(self._request(resource))
        self.context.network_changed()
        resource.physical_id, resource.attributes = made.physical_id, made.attributes
        self._scope.references[name], self._scope.attributes[name] = made.physical_id, made.attributes
        self._mark_resource(name, "CREATE_IN_PROGRESS", "Resource creation Initiated")
        if wait:
            self._waits[name] = wait
            self._later(name, wait.timeout_s, self._wait_timed_out, name, self._attempts[name])
            self.post(self._check_signals, name)
        return made.pending or wait is not None

    def _require_rights(self, kind: str, *, deleting: bool) -> None:
        place = f"{self.stack.region}:{self.context.account}"
        rights.require(self._may, kind, self.stack.name, place, self.stack.tags, deleting=deleting)

    def _request(self, resource: Resource) -> Request:
        name, stack = resource.declared.logical_id, self.stack
        attempt = self._attempts[name] = object()
        tags = {
            "aws:cloudformation:stack-name": stack.name,
            "aws:cloudformation:stack-id": stack.stack_id,
            "aws:cloudformation:logical-id": name,
            **stack.tags,
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
        )

    def _settled(self, name: str, attempt: object, error: str | None) -> None:
        if self._attempts.get(name) is not attempt:
            return
        if self.stack.resources[name].status == "DELETE_IN_PROGRESS":
            self._deleted(name, error)
            self._delete_ready()
        elif error:
            self._creation_failed(name, error)
        elif name not in self._waits:
            self._created(name)
            self._create_ready()

    def _created(self, name: str) -> None:
        self._forget(name)
        self._mark_resource(name, "CREATE_COMPLETE")
        self._walk.done(name)

    def _forget(self, name: str) -> None:
        self._attempts.pop(name, None)
        self._waits.pop(name, None)
        timer = self._timers.pop(name, None)
        if timer:
            timer.cancel()

    def _creation_failed(self, name: str, reason: str) -> None:
        self._forget(name)
        self._mark_resource(name, "CREATE_FAILED", reason)
        self._abort(f"The following resource(s) failed to create: [{name}]")

    def _finish_creation(self) -> None:
        try:
            self.stack.outputs = self._outputs()
        except Exception as error:
            self._abort(reason_of(error))
            return
        self._forget("")
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
        self._signals.setdefault(target, {}).setdefault(signal.unique_id, signal)
        for name in [name for name, wait in self._waits.items() if wait.target == target]:
            self._check_signals(name)

    def _check_signals(self, name: str) -> None:
        wait = self._waits.get(name)
        if wait is None or not self._creating:
            return
        received = self._signals.get(wait.target, {}).values()
        failure = wait.failure(received)
        if failure:
            self._creation_failed(name, failure)
        elif len(received) >= wait.count:
            if wait.is_condition:
                resource = self.stack.resources[name]
                resource.attributes = {**resource.attributes, "Data": data_text(received)}
                self._scope.attributes[name] = resource.attributes
            self._created(name)
            self._create_ready()

    def _wait_timed_out(self, name: str, attempt: object) -> None:
        if self._attempts.get(name) is attempt and name in self._waits:
            wait = self._waits[name]
            self._creation_failed(name, wait.timeout(self._signals.get(wait.target, {}).values()))

    # ---- giving up, rolling back, deleting

    def _abort(self, reason: str) -> None:
        """Give up a creation that can't succeed: cancel the rest, then do what `on_failure` says."""
        if not self._creating:
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
            if resource.status == "CREATE_IN_PROGRESS":
                self._forget(name)
                self._mark_resource(name, "CREATE_FAILED", CANCELLED)

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
        self._final, self._failed = final, []
        names = [name for name, resource in reversed(self.stack.resources.items()) if resource.exists]
        turned = reverse(self.stack.dependencies)
        self._walk = Walk({name: turned[name] & set(names) for name in names})
        self._delete_ready()

    def _delete_ready(self) -> None:
        while names := self._walk.ready():
            for name in names:
                self._delete(name)
        if not self._walk.running:
            self._finish_deletion()

    def _delete(self, name: str) -> None:
        resource = self.stack.resources[name]
        if self._is_kept(resource):
            self._mark_resource(name, "DELETE_SKIPPED")
            self._walk.done(name)
            return
        self._mark_resource(name, "DELETE_IN_PROGRESS")
        try:
            self._require_rights(resource.declared.type, deleting=True)
            with _MODELS:
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
        rolling_back = self._final == "ROLLBACK"
        return resource.declared.logical_id in self._retain or (
            policy in RETAINED and (RETAINED[policy] or not rolling_back)
        )

    def _deleted(self, name: str, error: str | None) -> None:
        self._attempts.pop(name, None)
        if error:
            self._mark_resource(name, "DELETE_FAILED", error)
            self._failed.append(name)
            self._walk.failed(name)
        else:
            self._mark_resource(name, "DELETE_COMPLETE")
            self._walk.done(name)

    def _finish_deletion(self) -> None:
        if self._failed:
            self._mark(
                f"{self._final}_FAILED", f"The following resource(s) failed to delete: [{', '.join(self._failed)}]. "
            )
            return
        self._mark(f"{self._final}_COMPLETE")


def reason_of(error: Exception) -> str:
    """Return an event's reason; log an unexpected exception with its traceback."""
    if isinstance(error, (ResourceFailed, Refused)):
        return str(error)
    if isinstance(error, ServiceException):
        return f"{error.message} ({error.code})"
    if isinstance(error, HTTPException):
        return str(getattr(error, "message", None) or error.description)
    log.error("unexpected", exc_info=error)
    return f"Internal Failure: {type(error).__name__}: {error}"
