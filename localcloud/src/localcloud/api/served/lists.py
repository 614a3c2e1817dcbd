"""Filters and pages of lists: the filters of EC2 that moto lacks or ignores, and the page sizes that it ignores.

Such a filter is applied to moto's answer. Its name shows which member of the answer it is about:
`metadata-options.http-tokens` is `MetadataOptions.HttpTokens` of an instance.
"""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import functools
import io
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

from botocore.exceptions import UnknownServiceError
from botocore.parsers import create_parser
from moto.core.serialize import get_serializer_class
from moto.core.utils import get_pagination_model

from localcloud.api.served import operations
from localcloud.iam import calls
from localcloud.iam.calls import Call

Filters = dict[str, list[str]]
# moto takes the filters of these, and most have no effect.
_IGNORED = ("DescribeAvailabilityZones", "DescribeInstanceStatus", "DescribeRegions")
_DEEPEST = 5
_FILTER = re.compile(r"<code>([a-z][\w.-]*) ?</code>")
_AFTER = "after "


Headers = list[tuple[str, str]]


class Answer(NamedTuple):
    """What a service answered over HTTP."""

    status: str
    headers: Headers
    body: bytes


Ask = Callable[[dict[str, Any]], Answer]


def answered(call: Call, ask: Ask, environ: dict[str, Any]) -> Answer:
    """Return the answer of `ask` to a request, with the filters and the page that the request asks for."""
    model = operations.named(call.service, call.operation)
    if model is None:
        return ask(environ)
    page, filters = _page(call, model), _filters(call, model)
    if not filters and page is None:
        return ask(environ)
    params = page.params(call) if page and page.after else call.params
    body = _body(call, params) if page and page.after else environ["wsgi.input"].read()
    answer = _tried(ask, environ, body) if filters else ask(_with(environ, body))
    if answer is None or (filters and call.operation in _IGNORED):
        answer = ask(_with(environ, _body(call, _without(params, filters))))
    else:
        filters = {}
    if not answer.status.startswith("200"):
        return answer
    result = parsed(call, model, answer)
    for name, values in filters.items():
        _filter(model.output_shape, result, name, values)
    is_cut = page is not None and page.cut(result)
    return written(call, model, answer, result) if filters or is_cut else answer


def _tried(ask: Ask, environ: dict[str, Any], body: bytes) -> Answer | None:
    """Return an answer, unless moto lacks something that the request asks for."""
    try:
        answer = ask(_with(environ, body))
    except NotImplementedError:
        return None
    lacks = answer.status.startswith("501") or (answer.status.startswith("400") and b"ilter" in answer.body)
    return None if lacks else answer


def _body(call: Call, params: Mapping[str, Any]) -> bytes:
    return urlencode(params).encode() if call.is_form else calls.unmistakable(params)


def _with(environ: dict[str, Any], body: bytes) -> dict[str, Any]:
    return {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}


# Filters


def _filters(call: Call, model: Any) -> Filters:
    """Return the filters of a request to EC2 that its answer can be compared with."""
    named, known = _asked(call, model)
    return {one: values for one, values in named.items() if one in known and _members(model.output_shape, one)}


def unknown_filter(call: Call, model: Any) -> str:
    """Return the first filter that AWS's pages do not name for this operation; "" if there is none."""
    named, known = _asked(call, model)
    of_tags = "tag:" if any(name.startswith("tag") for name in known) else ()
    strange = (one for one in named if not {one, _hyphened(one)} & known and not one.startswith(of_tags))
    return next(strange, "") if known else ""


def _hyphened(name: str) -> str:
    """Return a filter's name as pages write it: EC2 takes `isDefault` and `cidrBlock`, too, and clients rely on it."""
    return re.sub(r"(?<=[a-z0-9])[A-Z]", lambda letter: f"-{letter[0].lower()}", name)


def _asked(call: Call, model: Any) -> tuple[Filters, frozenset[str]]:
    """Return the filters of a request to EC2, and the names of those that the operation has."""
    if call.protocol != "ec2" or not any(key.startswith("Filter.") for key in call.params):
        return {}, frozenset()
    name = "Filters" if "Filters" in model.input_shape.members else "Filter"
    if name not in model.input_shape.members:
        return {}, frozenset()
    asked = operations.of_form(model, call.protocol, call.params).get(name) or []
    named = {str(one.get("Name", "null")): [str(value) for value in one.get("Values") or ()] for one in asked}
    return named, _documented(model.input_shape.members[name])


@functools.cache
def _documented(shape: Any) -> frozenset[str]:
    """Return the names of an operation's filters, which AWS's model lists in its text."""
    return frozenset(_FILTER.findall(shape.documentation))


def _without(params: Mapping[str, Any], filters: Filters) -> dict[str, Any]:
    """Return the parameters of a request without these filters."""
    own = [key.removesuffix(".Name") for key, name in params.items() if key.endswith(".Name") and name in filters]
    return {key: text for key, text in params.items() if ".".join(key.split(".")[:2]) not in own}


def _filter(shape: Any, result: dict[str, Any], name: str, values: list[str]) -> None:
    """Remove what a filter does not match from the innermost list that the filter is about."""
    (outer, *inner) = _members(shape, name)
    items = result.get(outer, [])
    if inner and inner[0] in _NESTED:
        for item in items:
            item[inner[0]] = [one for one in item.get(inner[0], []) if _matches(one, inner[1:], values)]
        result[outer] = [item for item in items if item[inner[0]]]
    else:
        result[outer] = [item for item in items if _matches(item, inner, values)]


# DescribeInstances lists instances within reservations.
_NESTED = ("Instances",)


def _matches(item: Any, path: list[str], patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(_text(value), pattern) for value in _values(item, path) for pattern in patterns)


def _values(item: Any, path: list[str]) -> Iterator[Any]:
    if isinstance(item, list):
        for one in item:
            yield from _values(one, path)
    elif not path:
        yield item
    elif isinstance(item, dict) and path[0] in item:
        yield from _values(item[path[0]], path[1:])


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return str(value).lower() if isinstance(value, bool) else str(value)


@functools.lru_cache(maxsize=1 << 10)
def _members(shape: Any, name: str) -> tuple[str, ...]:
    """Return the path to the member of an answer that a filter is about; () if the answer has none."""
    if name.startswith("tag") or shape is None:
        return ()
    found = [path for path in _paths(shape) if _names([_plain(one) for one in path], [*map(_plain, name.split("."))])]
    return min(found, key=len, default=())


def _paths(shape: Any, depth: int = 0) -> Iterator[tuple[str, ...]]:
    """Yield the paths to the texts, numbers and flags within a structure; the first step is a list."""
    for name, member in shape.members.items():
        inner = member.member if member.type_name == "list" else member
        if depth == 0 and member.type_name != "list":
            continue
        if inner.type_name == "structure" and depth < _DEEPEST:
            yield from ((name, *path) for path in _paths(inner, depth + 1))
        elif depth:
            yield (name,)


def _names(path: list[str], wanted: list[str]) -> bool:
    """Whether the parts of a filter's name are the last member of a path and some before it, in this order.

    A part may also name two members, as `instance-state-code` does, and only the end of one, as `addresses` does.
    """
    last = wanted[-1]
    if last != path[-1] and not (len(path) > 1 and last.endswith(path[-2] + path[-1])):
        return False
    rest = iter(path[1:-1])
    return all(any(step.endswith(part) for step in rest) for part in wanted[:-1])


def _plain(name: str) -> str:
    return name.lower().replace("-", "").removesuffix("s")


# Pages


class _Page(NamedTuple):
    """A page of `limit` items, of which moto's answer to `token` has all that come after the first `after`."""

    pages: Mapping[str, Any]
    limit: int
    after: int
    token: str

    def cut(self, result: dict[str, Any]) -> bool:
        """Keep this page of a longer list, and say where the next begins; whether there was something to cut."""
        whole, end = result.get(self.pages["result_key"]), self.after + self.limit
        if not isinstance(whole, list) or (not self.after and len(whole) <= self.limit):
            return False
        result[self.pages["result_key"]] = whole[self.after : end]
        if end < len(whole):
            result[self.pages["output_token"]] = base64.b64encode(f"{_AFTER}{end} {self.token}".encode()).decode()
            if more := self.pages.get("more_results"):
                result[more] = True
        return True

    def params(self, call: Call) -> dict[str, Any]:
        """Return the parameters of a request with moto's own token."""
        own = {self.pages["input_token"]: self.token} if self.token else {}
        return {key: value for key, value in call.params.items() if key != self.pages["input_token"]} | own


def _page(call: Call, model: Any) -> _Page | None:
    """Return the page that a request asks for, where AWS's models say how the operation has pages."""
    pages = pagination(model.service_model.service_name).get(model.name, {}) if call.service != "s3" else {}
    limit, names = call.params.get(str(pages.get("limit_key"))), (pages.get("result_key"), pages.get("output_token"))
    if not all(isinstance(name, str) and "." not in name for name in names) or not str(limit or "").isdigit():
        return None
    token = str(call.params.get(pages["input_token"]) or "")
    return _Page(pages, int(str(limit)), *(_read(token) or (0, token)))


def _read(token: str) -> tuple[int, str] | None:
    """Return what a token of these pages says, None for another."""
    with contextlib.suppress(ValueError):
        text = base64.b64decode(token).decode()
        after, _, own = text.removeprefix(_AFTER).partition(" ")
        return (int(after), own) if text.startswith(_AFTER) else None
    return None


@functools.cache
def pagination(service: str) -> dict[str, Any]:
    """Return how a service's operations have pages, by botocore's name of it."""
    try:
        return get_pagination_model(service)
    except UnknownServiceError:
        return {}


# Answers, read and written as AWS's models say


def parsed(call: Call, model: Any, answer: Answer) -> dict[str, Any]:
    """Return what an answer says, by its operation's model."""
    read = create_parser(_PROTOCOLS.get(call.protocol, call.protocol))
    found = read.parse({"body": answer.body, "headers": dict(answer.headers), "status_code": 200}, model.output_shape)
    return {key: value for key, value in found.items() if key != "ResponseMetadata"}


def written(call: Call, model: Any, answer: Answer, result: dict[str, Any]) -> Answer:
    """Return an answer that says this instead."""
    write = get_serializer_class(model.service_model.service_name, _PROTOCOLS.get(call.protocol, call.protocol))
    body = write(operation_model=model).serialize(result)["body"]
    content = body.encode() if isinstance(body, str) else body
    sized = {"content-length": str(len(content))}
    return Answer(answer.status, [(name, sized.get(name.lower(), text)) for name, text in answer.headers], content)


_PROTOCOLS = {"rest": "rest-json"}
