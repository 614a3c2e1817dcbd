"""AWS::Lambda types: functions with inline code, and their permissions."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

from moto.awslambda.models import lambda_backends

from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources.buckets import s3
from localcloud.cloudformation.resources.registry import Made, Request, resource

FUNCTION_KEYS = (
    "Description",
    "Environment",
    "Handler",
    "LoggingConfig",
    "MemorySize",
    "ReservedConcurrentExecutions",
    "Role",
    "Runtime",
    "Timeout",
)
PERMISSION_KEYS = ("Action", "EventSourceToken", "Principal", "SourceAccount", "SourceArn")


def functions(request: Request) -> Any:
    """Return moto's Lambda backend for the stack's account and region."""
    return lambda_backends[request.context.account][request.region]


def code(request: Request) -> bytes:
    """Return a function's code as a base64 zip file."""
    given = request.properties["Code"]
    if "ZipFile" in given:
        return _zipped(str(request.properties.get("Runtime", "")), given["ZipFile"])
    if "S3Bucket" not in given:
        raise ResourceFailed("The local cloud runs functions whose code is inline (Code.ZipFile) or in S3")
    stored = s3(request).get_object(given["S3Bucket"], given["S3Key"])
    if stored is None:
        raise ResourceFailed("Error occurred while GetObject. S3 Error Code: NoSuchKey. (Service: Lambda)")
    return base64.b64encode(stored.value)


def _zipped(runtime: str, code: str) -> bytes:
    # docs/aws-behaviour.md 1.15: inline code is Node.js or Python only, and its file is `index`.
    if runtime.startswith("nodejs"):
        raise ResourceFailed(f"The local cloud runs functions in Python only, not in {runtime}")
    if not runtime.startswith("python"):
        raise ResourceFailed(
            f"ZipFile can only be used when Runtime is set to either of nodejs or python, not {runtime}"
        )
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("index.py", code)
    return base64.b64encode(held.getvalue())


def configuration(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return a function's settings as moto takes them."""
    spec = {key: properties[key] for key in FUNCTION_KEYS if key in properties}
    return {**spec, "Timeout": int(spec["Timeout"])} if "Timeout" in spec else spec


def _delete_function(request: Request, physical_id: str) -> None:
    if any(function.function_name == physical_id for function in functions(request).list_functions()):
        functions(request).delete_function(physical_id)


@resource("AWS::Lambda::Function", _delete_function, "Arn")
def _function(request: Request) -> Made:
    spec = configuration(request.properties)
    spec["FunctionName"] = request.name("FunctionName", 64)
    spec["Code"] = {"ZipFile": code(request)}
    spec["Tags"] = request.tag_map()
    function = functions(request).create_function(spec)
    return Made(function.function_name, {"Arn": function.function_arn})


def _delete_permission(request: Request, physical_id: str) -> None:
    name = str(request.properties["FunctionName"]).rpartition(":")[2]
    for function in functions(request).list_functions():
        sids = [statement.get("Sid") for statement in function.policy.statements]
        if function.function_name == name and physical_id in sids:
            functions(request).remove_permission(name, physical_id)


@resource("AWS::Lambda::Permission", _delete_permission, "Id")
def _permission(request: Request) -> Made:
    properties = request.properties
    name = request.name("", 100)
    statement = {key: properties[key] for key in PERMISSION_KEYS if key in properties} | {"StatementId": name}
    functions(request).add_permission(properties["FunctionName"], None, json.dumps(statement))
    return Made(name, {"Id": name})
