"""Make the same requests of two AWSs, and compare their answers: codes, messages, shapes, orders and pages."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jmespath
import yaml
from benchmarks.recording import members
from botocore.exceptions import ClientError, WaiterError

REQUESTS = yaml.safe_load((Path(__file__).parent / "requests.yaml").read_text())["requests"]
_QUEUE = {"Type": "AWS::SQS::Queue"}
_TRUST = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
_ALLOW = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}
_ROLE = {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": {"Statement": _TRUST}}}
_CLIENT_OF = {"wait": "cloudformation"}


def given() -> dict[str, Any]:
    """Return what requests refer to by name, before the first."""
    return {
        "trust": json.dumps({"Version": "2012-10-17", "Statement": _TRUST}),
        "allow": json.dumps({"Version": "2012-10-17", "Statement": _ALLOW}),
        "stack": json.dumps({"Resources": {"Queue": _QUEUE}, "Outputs": {"Url": {"Value": {"Ref": "Queue"}}}}),
        "larger_stack": json.dumps({"Resources": {"Queue": _QUEUE, "Topic": {"Type": "AWS::SNS::Topic"}}}),
        "stack_with_role": json.dumps({"Resources": {"Role": _ROLE}}),
        "now_ms": int(time.time() * 1000),
    }


def answers(client: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Make every request of one AWS, whose clients check nothing; return the answers."""
    known, found = given(), []
    for name, asked, *uses in REQUESTS:
        service, _, operation = name.partition(".")
        answer = _answer(client(_CLIENT_OF.get(service, service)), service, operation, filled(asked, known))
        known |= {key: jmespath.search(path, answer) or "" for key, path in (uses[0] if uses else {}).items()}
        found.append(answer)
    return found


def _answer(client: Any, service: str, operation: str, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        if service == "wait":
            client.get_waiter(_snake(operation)).wait(**asked, WaiterConfig={"Delay": 0.2, "MaxAttempts": 100})
            return {}
        answer = client._make_api_call(operation, asked)
    except (ClientError, WaiterError) as error:
        if isinstance(error, WaiterError):
            return {"Error": {"Code": "WaiterError", "Message": ""}}
        return {"Error": error.response["Error"]}
    return {key: value for key, value in answer.items() if key != "ResponseMetadata"}


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def filled(value: Any, known: Mapping[str, Any]) -> Any:
    """Put what is known into a request."""
    if isinstance(value, dict):
        return {key: filled(one, known) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one, known) for one in value]
    if not isinstance(value, str) or "$" not in value:
        return value
    if value[1:] in known:
        return known[value[1:]]
    return re.sub(r"\$\{(\w+)}", lambda found: str(known[found[1]]), value)


def differences(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[list[str]]:
    """Return where answers differ: the request, what each says, and the members that only theirs have.

    Members that only ours have are in AWS's model, because botocore reads no others.
    """
    found = []
    for request, one, other in zip(REQUESTS, theirs, ours, strict=True):
        said = [_said(one), _said(other)]
        if said == ["accepted", "accepted"] and (lacks := sorted(dict(members(one)).keys() - dict(members(other)))):
            said = [f"has {', '.join(lacks)}", "has not"]
        if said[0] != said[1]:
            found.append([_text(request), *said])
    return found


def _text(request: list[Any]) -> str:
    return f"{request[0]} {json.dumps(request[1]).replace(chr(34), '')}"[:160]


def _said(answer: dict[str, Any]) -> str:
    if "Error" not in answer:
        return "accepted"
    return f"{answer['Error']['Code']}: {_OWN.sub('…', answer['Error'].get('Message', ''))}"[:200]


# Accounts and ids.
_OWN = re.compile(
    r"\b\d{12}\b|\b(?!vpc-0123|i-0123|subnet-0123)[a-z]+-[0-9a-f]{17}\b|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
