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
# Service → code and message. SQS takes nearly any number of calls, and STS and S3 are not ours to strain.
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


def wrap(context: Context, app: App) -> App:
    """Return `app` behind the throttle. `iam.wrap` must stand before it: it parses the call and names the caller."""

    def throttled(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        call = environ.get(calls.PARSED)
        if call is None or call.service not in _REFUSALS or not _is_throttled(context, call):
            return app(environ, start_response)
        code, message = _REFUSALS[call.service]
        return errors.throttled(call, code, message, start_response)

    return throttled


def _is_throttled(context: Context, call: Call) -> bool:
    caller = credentials.caller().rpartition(":")[2]
    draw = context.weather.draw("throttling", caller, call.action)
    if draw is None or not draw.happens(_PROBABILITY):
        return False
    context.weather.struck("throttling", f"{call.action} by {caller}")
    return True
