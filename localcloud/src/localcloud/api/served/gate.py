"""Stands before every service: refuses what is not served, by name and with one code, and what a model forbids."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from localcloud.api.served import constraints, operations, table
from localcloud.api.served.constraints import Problem
from localcloud.iam import calls, errors
from localcloud.iam.calls import Call

App = Callable[[dict[str, Any], Any], Iterable[bytes]]
Refusal = tuple[str, str]
log = logging.getLogger(__name__)

# CloudFormation checks its own requests, with its own messages; and nobody reads S3's but S3.
_CHECK_THEMSELVES = ("cloudformation", "s3")
_CODES = {
    "logs": "InvalidParameterException",
    "lambda": "InvalidParameterValueException",
    "tag": "InvalidParameterException",
}


def wrap(app: App) -> App:
    """Return `app` behind the gate. `iam.wrap` must stand before it: it parses the call."""

    def gate(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        call: Call = environ[calls.PARSED]
        refusal = _refusal(call)
        if refusal:
            return errors.refused(call, *refusal, start_response, 400)
        return _answer(app, call, environ, start_response)

    return gate


def _refusal(call: Call) -> Refusal | None:
    model = operations.named(call.service, call.operation)
    if model is None or not table.is_served(call.service, call.operation):
        return errors.NOT_SERVED, f"The local cloud does not serve {call.service}:{call.operation}."
    if call.service in _CHECK_THEMSELVES or model.input_shape is None:
        return None
    try:
        given = operations.of_form(model, call.protocol, call.params) if call.is_form else call.params
    except ValueError as error:
        return _code(call, None), f"A parameter of {call.operation} has the wrong type: {error}"
    if call.service == "ec2" and (without_effect := _asked_in_vain(given)):
        return errors.NOT_SERVED, f"The local cloud does not serve {', '.join(without_effect)} of {call.action}."
    found = list(constraints.problems(model.input_shape, given))
    return _described(call, found) if found else None


def _asked_in_vain(given: Mapping[str, Any]) -> list[str]:
    """Return the parameters that have no effect here, unless they turn something off."""
    return sorted(name for name in table.WITHOUT_EFFECT & given.keys() if _is_asked(given[name]))


def _is_asked(value: Any) -> bool:
    """Whether a parameter asks for something: a boolean may be set to False, or stand within a structure."""
    return _is_asked(value.get("Value")) if isinstance(value, dict) and "Value" in value else bool(value)


def _code(call: Call, problem: Problem | None) -> str:
    if call.protocol == "ec2" or call.service == "sqs":
        return "MissingParameter" if problem and problem.is_missing else "InvalidParameterValue"
    if call.protocol == "query":
        return "ValidationError"
    return _CODES.get(call.service, "ValidationException")


def _described(call: Call, found: list[Problem]) -> Refusal:
    """Word the refusal as the service does: EC2 and SQS name the first problem, the others all."""
    first, code = found[0], _code(call, found[0])
    name = first.path[0].upper() + first.path[1:]
    if code == "MissingParameter":
        return code, f"The request must contain the parameter {name}"
    if code == "InvalidParameterValue":
        return code, f"Invalid value '{first.value}' for {name}."
    errors_in = "error" if len(found) == 1 else "errors"
    return code, f"{len(found)} validation {errors_in} detected: {'; '.join(one.text() for one in found)}"


def _answer(app: App, call: Call, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Return the service's answer; refuse the call where the service has no proper one."""
    shown: list[Any] = []
    try:
        body = app(environ, lambda *answer: shown.append(answer))
        body = list(body)
    except Exception as error:
        if not isinstance(error, NotImplementedError):
            log.exception("%s", call.action)
        return _unable(call, start_response)
    status, headers = shown[0][:2]
    if status.startswith("5") or (status.startswith("40") and any(body) and _is_a_page(headers)):
        log.error("%s: %s %s", call.action, status, b"".join(body)[:2000])
        return _unable(call, start_response)
    start_response(*shown[0])
    return body


def _is_a_page(headers: Iterable[tuple[str, str]]) -> bool:
    """Whether the answer is the web framework's, for an address that no service has."""
    return dict(headers).get("Content-Type", "").startswith("text/html")


def _unable(call: Call, start_response: Any) -> Iterable[bytes]:
    message = f"The local cloud does not serve {call.service}:{call.operation} as requested; see localcloud.log."
    return errors.not_served(call, message, start_response)
