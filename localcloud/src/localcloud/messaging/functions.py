"""Lambda functions: each runs in a child process with its role's credentials, which stays warm for a while."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
import uuid
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from moto.awslambda.models import LambdaBackend, LambdaFunction
from moto.awslambda.utils import get_backend

from localcloud.api import partitions
from localcloud.context import Context
from localcloud.iam import credentials, middleware
from localcloud.messaging.environment import DIRECTORY, Environment, Outcome
from localcloud.storage import trees

log = logging.getLogger(__name__)

PATCHED = (
    "moto.awslambda.models.LambdaFunction.invoke",
    "moto.awslambda.models.LambdaBackend.create_function",
    "moto.awslambda.models.LambdaBackend.delete_function",
)

# More would only compete for this machine's cores while nodes boot.
MAX_CHILDREN = 2
# Long enough for the notifications of one boot, and no longer: boto3 in a child takes 40 MiB.
WARM_S = 10.0
# Of events that wait for a child; AWS's own queue ends by age, after six hours.
MOST_WAITING = 1000
# Of all functions' logs, which are memory here. The oldest lines go first.
MOST_LOGGED_BYTES = 16 << 20
# What an event takes besides its text, roughly.
_EVENT_BYTES = 512
# PutLogEvents takes a MiB, with 26 bytes for each event; that of one invocation is one call here.
_BATCH_BYTES = 1_000_000
# AWS retries an asynchronous invocation after one minute and again after two.
RETRY_DELAYS_S = (60.0, 120.0)
# A throttled event is tried again after 1 s, 2 s, 4 s … (docs/aws-behaviour.md 11.2).
_THROTTLED_TIMES = (0, 0, 0, 1, 2, 4, 6)

_moto_create = LambdaBackend.create_function
_moto_delete = LambdaBackend.delete_function


class Functions:
    """Runs invocations, at most MAX_CHILDREN at a time."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._lock = threading.Lock()
        self._warm: dict[str, list[Environment]] = defaultdict(list)
        self._busy: set[Environment] = set()
        self._pool = ThreadPoolExecutor(MAX_CHILDREN, thread_name_prefix="lambda")
        self._waiting = 0
        # The events of a log stream, how many of them an invocation has added, and their size.
        self._logged: deque[tuple[list[Any], int, int]] = deque()
        context.at_stop(self.stop)

    def run(self, function: LambdaFunction, event: Any) -> Outcome:
        """Invoke a function; return when it ended or its timeout has passed."""
        return self._pool.submit(self._run, function, event).result()

    def run_async(self, function: LambdaFunction, event: Any) -> None:
        """Start an invocation, once it is not throttled, and return at once; one that fails is retried twice."""
        throttled_s = self._throttled_s(function)
        if throttled_s > 0:
            self.context.clock.call_later(throttled_s, self._attempt, function, event, 0)
        else:
            self._attempt(function, event, 0)

    def _throttled_s(self, function: LambdaFunction) -> float:
        draw = self.context.weather.draw("function", function.function_name)
        times = draw.choice(_THROTTLED_TIMES) if draw else 0
        if draw is None or not times:
            return 0.0
        self.context.weather.struck("function", f"{function.function_name} was throttled {times} times")
        return self.context.weather.scaled(2**times - 1)

    def _attempt(self, function: LambdaFunction, event: Any, attempt: int) -> None:
        with self._lock:
            if self._waiting >= MOST_WAITING:
                log.warning("an event for function %s was discarded: %s wait", function.function_name, MOST_WAITING)
                return
            self._waiting += 1
        self._pool.submit(self._run_and_retry, function, event, attempt)

    def forget(self, arn: str) -> None:
        """End a deleted function's processes, including those that run an invocation."""
        self._end([e for e in self._environments() if e.arn == arn])

    def stop(self) -> None:
        """End every process and remove its files."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._end(self._environments())
        trees.remove(self.context.state / DIRECTORY)

    def _run_and_retry(self, function: LambdaFunction, event: Any, attempt: int) -> None:
        with self._lock:
            self._waiting -= 1
        try:
            failed = self._run(function, event).failed
        except Exception:
            failed = True
            # A function that was deleted meanwhile has lost its role and its files.
            if _exists(function):
                log.exception("function %s could not be run", function.function_name)
        if failed and attempt < len(RETRY_DELAYS_S) and _exists(function):
            delay_s = self.context.weather.scaled(RETRY_DELAYS_S[attempt])
            self.context.clock.call_later(delay_s, self._attempt, function, event, attempt + 1)

    def _run(self, function: LambdaFunction, event: Any) -> Outcome:
        request_id = str(uuid.uuid4())
        started = time.monotonic()
        environment = self._take(function)
        try:
            outcome = environment.invoke(request_id, event, float(function.timeout))
        finally:
            self._give_back(environment)
        if self._may_log(function, environment.log_stream):
            written = _write_log(function, environment.log_stream, request_id, outcome, time.monotonic() - started)
            self._forget_logs(*written)
        return outcome

    def _forget_logs(self, events: list[Any], count: int) -> None:
        """Note what was logged, and drop the oldest lines of all functions beyond the limit."""
        with self._lock:
            size = sum(_EVENT_BYTES + len(event.message) for event in events[len(events) - count :])
            self._logged.append((events, count, size))
            total = sum(size for _, _, size in self._logged)
            while total > MOST_LOGGED_BYTES:
                oldest, number, size = self._logged.popleft()
                del oldest[:number]
                total -= size

    def _may_log(self, function: LambdaFunction, stream: str) -> bool:
        """Whether the function's role may write its log: Lambda does that with the role's rights."""
        session = credentials.for_function(self.context, function.role, function.function_name)
        place = f"{function.region}:{function.account_id}:log-group:{function.logs_group_name}:log-stream:{stream}"
        actions = ("logs:CreateLogStream", "logs:PutLogEvents")
        return all(middleware.may(self.context, session, one, f"{partitions.arn()}:logs:{place}") for one in actions)

    def _take(self, function: LambdaFunction) -> Environment:
        with self._lock:
            warm = self._warm[function.function_arn]
            usable = [environment for environment in warm if environment.fits(function)]
            if usable:
                environment = usable[0]
                warm.remove(environment)
                self._busy.add(environment)
                return environment
        session = credentials.for_function(self.context, function.role, function.function_name)
        environment = Environment(function, self.context, session.issued)
        with self._lock:
            self._busy.add(environment)
        return environment

    def _give_back(self, environment: Environment) -> None:
        with self._lock:
            self._busy.discard(environment)
            if environment.alive():
                environment.idle_since = self.context.clock.now()
                self._warm[environment.arn].append(environment)
                self.context.clock.call_later(WARM_S, self._cool, environment)
                return
        environment.close()

    def _cool(self, environment: Environment) -> None:
        """End an environment that was idle for WARM_S."""
        with self._lock:
            warm = self._warm[environment.arn]
            idle_s = (self.context.clock.now() - environment.idle_since).total_seconds()
            # One that was used again has a later timer of its own; timers may fire a little early.
            if environment not in warm or idle_s < WARM_S - 0.5:
                return
            warm.remove(environment)
        environment.close()

    def _environments(self) -> list[Environment]:
        with self._lock:
            return [*self._busy, *(e for warm in self._warm.values() for e in warm)]

    def _end(self, environments: list[Environment]) -> None:
        for environment in environments:
            with self._lock:
                if environment in self._warm[environment.arn]:
                    self._warm[environment.arn].remove(environment)
            environment.close()


_functions: Functions | None = None


def install(context: Context) -> None:
    """Make moto run functions here instead of in Docker."""
    global _functions
    _functions = Functions(context)
    LambdaFunction.invoke = _invoke
    LambdaBackend.create_function = _create
    LambdaBackend.delete_function = _delete


def invoke_async(function: LambdaFunction, event: Any) -> None:
    """Invoke a function without waiting for it, as AWS's event sources do."""
    _running().run_async(function, event)


def _running() -> Functions:
    assert _functions is not None, "call functions.install() first"
    return _functions


def _invoke(self: LambdaFunction, body: Any, request_headers: Any, response_headers: Any) -> str | bytes:
    """Answer Invoke: RequestResponse waits, Event does not, DryRun does nothing."""
    event = json.loads(body) if body else {}
    kind = request_headers.get("x-amz-invocation-type", "RequestResponse")
    if kind == "Event":
        invoke_async(self, event)
        return ""
    if kind == "DryRun":
        return ""
    outcome = _running().run(self, event)
    if outcome.failed:
        response_headers["x-amz-function-error"] = "Unhandled"
    response_headers["x-amz-log-result"] = base64.b64encode(outcome.log[-4096:].encode()).decode()
    return outcome.payload.encode()


def _create(self: LambdaBackend, spec: dict[str, Any]) -> LambdaFunction:
    """Create a function with its LoggingConfig, which moto ignores: it may log into the user's own group."""
    function = _moto_create(self, spec)
    group = (spec.get("LoggingConfig") or {}).get("LogGroup")
    function.logs_group_name = group or function.logs_group_name
    return function


def _delete(self: LambdaBackend, function_name: str, qualifier: str | None = None) -> None:
    function = self.get_function(function_name)
    _moto_delete(self, function_name, qualifier)
    _running().forget(function.function_arn)


def _exists(function: LambdaFunction) -> bool:
    return get_backend(function.account_id, function.region).get_function_by_arn(function.function_arn) is not None


def _write_log(
    function: LambdaFunction, stream: str, request_id: str, outcome: Outcome, seconds: float
) -> tuple[list[Any], int]:
    """Log an invocation to /aws/lambda/NAME, or to the group of the function's LoggingConfig, as Lambda formats it.

    AWS creates a missing group if the function's role may. The roles of our stacks may not
    (docs/aws-behaviour.md 1.22), so a configured group that was deleted stays deleted. Return the stream's events, and
    how many are new.
    """
    backend, group = function.logs_backend, function.logs_group_name
    if group != f"/aws/lambda/{function.function_name}" and group not in backend.groups:
        return [], 0
    lines = [
        f"START RequestId: {request_id} Version: $LATEST",
        *_last_lines(outcome.log),
        f"END RequestId: {request_id}",
        f"REPORT RequestId: {request_id} Duration: {seconds * 1000:.2f} ms Memory Size: {function.memory_size} MB",
    ]
    now_ms = int(time.time() * 1000)
    backend.ensure_log_group(group)
    if stream not in backend.groups[group].streams:
        backend.create_log_stream(group, stream)
    backend.put_log_events(group, stream, [{"timestamp": now_ms, "message": line} for line in lines])
    return backend.groups[group].streams[stream].events, len(lines)


def _last_lines(text: str) -> list[str]:
    """Return the last lines that fit into a batch. Empty ones take memory, too."""
    found: list[str] = []
    left = _BATCH_BYTES
    for line in reversed(text.splitlines()):
        left -= _EVENT_BYTES + len(line)
        if left < 0:
            break
        found.append(line)
    return found[::-1]
