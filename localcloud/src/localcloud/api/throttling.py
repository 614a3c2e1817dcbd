"""Throttles calls, each service in its own words: in bad weather at random (docs/aws-behaviour.md 11.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from localcloud.context import Context
from localcloud.iam import calls, credentials, errors
from localcloud.iam.calls import Call
from localcloud.storage import tables

App = Callable[[dict[str, Any], Any], Iterable[bytes]]

_PROBABILITY = 0.1
_RATE = ("Throttling", "Rate exceeded")
# Service → code and message.
_REFUSALS = {
    "ec2": ("RequestLimitExceeded", "Request limit exceeded."),
    "autoscaling": _RATE,
    "cloudformation": _RATE,
    "iam": _RATE,
    "elasticmapreduce": ("ThrottlingException", "Rate exceeded"),
    "logs": ("ThrottlingException", "Rate exceeded"),
    "ssm": ("ThrottlingException", "Rate exceeded"),
    "lambda": ("TooManyRequestsException", "Rate Exceeded."),
    "dynamodb": tables.EXHAUSTED,
    "tag": ("ThrottledException", "Rate exceeded"),
}
# Not in bad weather: SQS takes nearly any number of calls, and S3 is not ours to strain. SendMessage's page of the API
# reference; S3 User Guide, "Best practices design patterns: optimizing performance".
_SPARED = {
    "sqs": ("RequestThrottled", "The request was denied due to request throttling."),
    "s3": ("SlowDown", "Please reduce your request rate."),
}


def refusal(service: str) -> tuple[str, str]:
    """Return the code and the message with which a service refuses a call that is one too many."""
    return {**_REFUSALS, **_SPARED}.get(service, _RATE)


def wrap(context: Context, app: App) -> App:
    """Return `app` behind the throttle. `iam.wrap` must stand before it: it parses the call and names the caller."""

    def throttled(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        call = environ.get(calls.PARSED)
        if call is None or call.service not in _REFUSALS or not _is_throttled(context, call):
            return app(environ, start_response)
        return errors.throttled(call, *refusal(call.service), start_response)

    return throttled


def _is_throttled(context: Context, call: Call) -> bool:
    caller = credentials.caller().rpartition(":")[2]
    draw = context.weather.draw("throttling", caller, call.action)
    if draw is None or not draw.happens(_PROBABILITY):
        return False
    context.weather.struck("throttling", f"{call.action} by {caller}")
    return True
