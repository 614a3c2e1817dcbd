"""The liberties that AWS takes with its answers: lists in any order, and pages that are empty although more follow.

Only what the documents of an operation say. EC2 and EFS leave the order of some lists open, also within their items;
CloudWatch Logs may return an empty page with a token (docs/aws-behaviour.md 2.78, 11.22).
"""

from __future__ import annotations

import io
import json
from hashlib import sha256
from typing import Any
from xml.etree import ElementTree

from localcloud.iam import calls
from localcloud.iam.calls import Call

_OF_EC2 = ("AvailabilityZones", "Images", "InstanceStatus", "Instances", "Regions", "Tags", "Volumes")
_OF_EFS = ("FileSystems", "MountTargets")
_IN_ANY_ORDER = frozenset(
    [*(f"ec2:Describe{name}" for name in _OF_EC2), *(f"elasticfilesystem:Describe{name}" for name in _OF_EFS)]
)
_TOKENS = {"GetLogEvents": ("nextBackwardToken", "nextForwardToken"), "FilterLogEvents": ("nextToken",)}
_MAY_BE_EMPTY = frozenset(f"logs:{operation}" for operation in _TOKENS)
# The token of the page after an empty one, with which each list begins.
_BEHIND = "behind-an-empty-page"


def asked(environ: dict[str, Any]) -> None:
    """Remove the token of an empty page from a request: what follows is the first page."""
    call: Call = environ[calls.PARSED]
    if call.action in _MAY_BE_EMPTY and call.params.get("nextToken") == _BEHIND:
        body = calls.unmistakable({key: value for key, value in call.params.items() if key != "nextToken"})
        environ.update({"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))})


def taken(call: Call, body: bytes) -> bytes:
    """Return an answer as AWS may send it: each time the same, so that a failure comes again."""
    if call.action in _MAY_BE_EMPTY and not call.params.get("nextToken"):
        return json.dumps({"events": [], **dict.fromkeys(_TOKENS[call.operation], _BEHIND)}).encode()
    if call.action not in _IN_ANY_ORDER:
        return body
    if call.is_form:
        return _shuffled(body)
    lists = {key: _sorted(value) if isinstance(value, list) else value for key, value in json.loads(body).items()}
    return json.dumps(lists).encode()


def _sorted(items: list[Any]) -> list[Any]:
    return sorted(items, key=lambda item: sha256(json.dumps(item, sort_keys=True).encode()).digest())


def _shuffled(body: bytes) -> bytes:
    root = ElementTree.fromstring(body)
    for one in root.iter():
        if len(one) > 1 and all(child.tag.endswith("}item") for child in one):
            one[:] = sorted(one, key=lambda item: sha256(ElementTree.tostring(item)).digest())
    namespace = root.tag.partition("}")[0].removeprefix("{")
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True, default_namespace=namespace)
