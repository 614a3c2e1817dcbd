"""Calls that an instance signs with its identity document: how cfn-init and cfn-signal work without a role.

CloudFormation believes the document by its signature, and lets the instance call two operations for the stack that it
belongs to (docs/aws-behaviour.md 1.43).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from localcloud.ec2 import identity
from localcloud.iam.calls import Call

OPERATIONS = ("DescribeStackResource", "SignalResource")
NOT_ALLOWED = "Instance {} is not allowed to call {} for {}"
_AUTHORIZATION = re.compile(r"CFN_V1 (?P<document>[A-Za-z0-9+/=]+):(?P<signature>[A-Za-z0-9+/=]+)")
_HOST = re.compile(r"cloudformation\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?")
_STACK_TAGS = ("aws:cloudformation:stack-name", "aws:cloudformation:stack-id")
# Returns the tags of an instance that lives; None for any other.
TagsOf = Callable[[str], "dict[str, str] | None"]


def is_used(environ: dict[str, Any]) -> bool:
    """Whether a request is signed so."""
    return environ.get("HTTP_AUTHORIZATION", "").startswith("CFN_V1 ")


def read(environ: dict[str, Any], body: bytes) -> tuple[Call, str] | None:
    """Return the call and its instance's id; None if the signature is wrong. Later readers find a usual signature."""
    found = _AUTHORIZATION.fullmatch(environ["HTTP_AUTHORIZATION"])
    document = identity.believed(found["document"], found["signature"]) if found else None
    params = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    if document is None or "Action" not in params:
        return None
    host = _HOST.match(environ.get("HTTP_HOST", ""))
    region = host["region"] if host else document["region"]
    credential = f"Credential={document['instanceId']}/20200101/{region}/cloudformation/aws4_request"
    environ["HTTP_AUTHORIZATION"] = f"AWS4-HMAC-SHA256 {credential}, SignedHeaders=host, Signature=0"
    call = Call("", region, "cloudformation", params["Action"], "query", params, body=body)
    return replace(call, source_ip=environ.get("REMOTE_ADDR", "")), document["instanceId"]


def refusal(call: Call, instance_id: str, tags_of: TagsOf) -> str:
    """Return why the instance may not make the call; "" if it may."""
    stack, tags = call.params.get("StackName", ""), tags_of(instance_id) or {}
    own = [tags[key] for key in _STACK_TAGS if key in tags]
    allowed = call.operation in OPERATIONS and stack in own
    return "" if allowed else NOT_ALLOWED.format(instance_id, call.operation, stack)
