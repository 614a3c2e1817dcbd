"""Stands before every service: refuses what is not served, by name and with one code, and what a model forbids.

AWS's own models say which members must be there, which values are allowed, bounds and patterns. SDKs check some of it
before they send a request; AWS checks all of it, and moto next to nothing.
"""

from __future__ import annotations

import functools
import logging
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from localcloud.api import account_played
from localcloud.api.served import left_out, liberties, lists, operations, sentences, table, tokens
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
# Its own answer to a dry run checks what the launch needs, too.
_TRIED = "RunInstances"
_WOULD_SUCCEED = "Request would have succeeded, but DryRun flag is set."
# A launch template may name a type that does not exist.
_CHECKED_AT_LAUNCH = ("InstanceType",)


def wrap(app: App) -> App:
    """Return `app` behind the gate. `iam.wrap` must stand before it: it parses the call."""
    given = tokens.Tokens()

    def gate(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        call: Call = environ[calls.PARSED]
        start_response = _headed(call, start_response)
        refusal = _refusal(call) or given.refusal(call)
        if refusal:
            return errors.refused(call, *refusal, start_response, 400)
        if call.service == "ec2" and call.operation != _TRIED and str(call.params.get("DryRun", "")).lower() == "true":
            return _dry_run(call, start_response)
        return _answer(app, call, environ, start_response, given)

    return gate


def _headed(call: Call, start_response: Any) -> Any:
    """Return `start_response` with what every answer of AWS has: an id, and the type of its protocol."""

    def start(status: str, headers: lists.Headers, *more: Any) -> Any:
        # moto says text/html in several services; an object of S3 may be that.
        is_moto = call.service != "s3" and call.protocol in _TYPES and _is_a_page(headers)
        kept = [one for one in headers if not is_moto or one[0].lower() != "content-type"]
        kept += [("Content-Type", _TYPES[call.protocol])] if is_moto else []
        if "x-amzn-requestid" not in (name.lower() for name, _ in headers):
            kept.append(("x-amzn-RequestId", str(uuid.uuid4())))
        return start_response(status, kept, *more)

    return start


_TYPES = {"json": "application/x-amz-json-1.1", "rest": "application/json"}


def _dry_run(call: Call, start_response: Any) -> Iterable[bytes]:
    """Say whether EC2 would make a call that the caller's own policies allow. moto makes some of them all the same."""
    if refused := account_played.denial(call.action, call.region):
        return errors.refused(call, "UnauthorizedOperation", refused, start_response, 403)
    return errors.refused(call, "DryRunOperation", _WOULD_SUCCEED, start_response, 412)


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
    if unknown := lists.unknown_filter(call, model):
        return "InvalidParameterValue", f"The filter '{unknown}' is invalid"
    found = list(problems(model.input_shape, given))
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


def _answer(
    app: App, call: Call, environ: dict[str, Any], start_response: Any, given: tokens.Tokens
) -> Iterable[bytes]:
    """Return the service's answer; refuse the call where the service has no proper one."""

    def ask(environ: dict[str, Any]) -> lists.Answer:
        shown: list[Any] = []
        body = b"".join(app(environ, lambda *answer: shown.append(answer)))
        status, headers = shown[0][:2]
        return lists.Answer(status, headers, body)

    liberties.asked(environ)
    try:
        status, headers, body = answer = lists.answered(call, ask, environ)
        if status.startswith("20"):
            _, headers, body = left_out.put(call, answer)
            headers, body = _sized(headers, body, liberties.taken(call, body))
            given.remember(call, body)
    except Exception as error:
        if not isinstance(error, NotImplementedError):
            log.exception("%s", call.action)
        return _unable(call, start_response)
    if status.startswith("5") or (status.startswith("40") and body and _is_a_page(headers)):
        log.error("%s: %s %s", call.action, status, body[:2000])
        return _unable(call, start_response)
    if status.startswith("4"):
        headers, body = _sized(headers, body, sentences.worded(call.service, body))
    start_response(status, headers)
    return [body]


def _sized(headers: lists.Headers, before: bytes, body: bytes) -> tuple[lists.Headers, bytes]:
    """Return a changed body with its own length. That of an answer to HEAD is of a body that is not sent."""
    if body == before:
        return headers, body
    return [(name, str(len(body)) if name.lower() == "content-length" else text) for name, text in headers], body


def _is_a_page(headers: Iterable[tuple[str, str]]) -> bool:
    """Whether the answer is the web framework's, for an address that no service has."""
    return dict(headers).get("Content-Type", "").startswith("text/html")


def _unable(call: Call, start_response: Any) -> Iterable[bytes]:
    message = f"The local cloud does not serve {call.service}:{call.operation} as requested; see localcloud.log."
    return errors.not_served(call, message, start_response)


class Problem(NamedTuple):
    """What is wrong with a member: `value` is None where it is missing, `must` completes "Member must …"."""

    path: str
    value: Any
    must: str

    @property
    def is_missing(self) -> bool:
        return self.value is None

    def text(self) -> str:
        """Say it as AWS's services do."""
        shown = "null" if self.is_missing else f"'{self.value}'"
        return f"Value {shown} at '{self.path}' failed to satisfy constraint: Member must {self.must}"


def problems(shape: Any, value: Any, path: str = "") -> Iterator[Problem]:
    """Yield what is wrong with a value of botocore's shape, in the order of the model."""
    inside = _INSIDE.get(shape.type_name)
    if inside and isinstance(value, (dict, list)):
        yield from inside(shape, value, path)
    elif isinstance(value, str):
        yield from _wrong_text(shape, value, path)
    if shape.type_name in ("list", "string", "map") and isinstance(value, (str, list, dict)):
        yield from _wrong_length(shape.metadata, value, path)
    if shape.type_name in ("integer", "long") and isinstance(value, int):
        yield from _wrong_number(shape.metadata, value, path)


def _in_structure(shape: Any, value: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for name in shape.required_members:
        if value.get(name) is None:
            yield Problem(_below(path, name), None, "not be null")
    for name, member in shape.members.items():
        if value.get(name) is not None:
            yield from problems(member, value[name], _below(path, name))


def _in_list(shape: Any, value: list[Any], path: str) -> Iterator[Problem]:
    for number, item in enumerate(value, 1):
        yield from problems(shape.member, item, f"{path}.{number}.member")


def _in_map(shape: Any, value: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for key, item in value.items():
        yield from problems(shape.value, item, f"{path}.{key}.member")


_INSIDE: dict[str, Any] = {"structure": _in_structure, "list": _in_list, "map": _in_map}


def _below(path: str, name: str) -> str:
    shown = name[0].lower() + name[1:]
    return f"{path}.{shown}" if path else shown


def _wrong_text(shape: Any, value: str, path: str) -> Iterator[Problem]:
    rules = shape.metadata
    if "enum" in rules and value not in rules["enum"] and shape.name not in _CHECKED_AT_LAUNCH:
        yield Problem(path, value, f"satisfy enum value set: [{', '.join(rules['enum'])}]")
    pattern = _compiled(rules.get("pattern", ""))
    if pattern and not pattern.search(value):
        yield Problem(path, value, f"satisfy regular expression pattern: {rules['pattern']}")


def _wrong_length(rules: Mapping[str, Any], value: Any, path: str) -> Iterator[Problem]:
    if len(value) < rules.get("min", 0):
        yield Problem(path, value, f"have length greater than or equal to {rules['min']}")
    if len(value) > rules.get("max", len(value)):
        yield Problem(path, value, f"have length less than or equal to {rules['max']}")


def _wrong_number(rules: Mapping[str, Any], value: int, path: str) -> Iterator[Problem]:
    if value < rules.get("min", value):
        yield Problem(path, value, f"have value greater than or equal to {rules['min']}")
    if value > rules.get("max", value):
        yield Problem(path, value, f"have value less than or equal to {rules['max']}")


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """Compile a pattern for a whole value; None for one in Java's notation that Python lacks."""
    try:
        return re.compile(rf"\A(?:{pattern})\Z", re.DOTALL) if pattern else None
    except re.error:
        return None
