"""The operation that a request names and its parameters, read with botocore's models of AWS's services."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import UnknownServiceError
from botocore.model import OperationNotFoundError
from moto.core.model import OperationModel
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.request import Request
from moto.core.routing import get_service_router
from moto.core.utils import get_service_model
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import HTTPException

# botocore's names of services where they differ from the prefix of IAM's actions.
_MODELS = {
    "elasticfilesystem": "efs",
    "elasticmapreduce": "emr",
    "servicequotas": "service-quotas",
    "tag": "resourcegroupstaggingapi",
}
# Its requests contain objects, which nothing but S3 itself needs to read.
_OBJECTS = "s3"


def named(service: str, operation: str) -> OperationModel | None:
    """Return the model of an operation; None for one that AWS does not have. `service` is as in IAM's actions."""
    model = _model(service)
    try:
        return model.operation_model(operation) if model else None
    except OperationNotFoundError:
        return None


def of_form(operation: OperationModel, protocol: str, form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request in the protocols `query` and `ec2`. Raises ValueError for a wrong type."""
    return _parsed(operation, protocol, {"values": MultiDict(form), "headers": {}})


def of_rest(service: str, environ: Mapping[str, Any], body: bytes) -> tuple[str, dict[str, Any]]:
    """Return the operation and the parameters of a REST request; "" for an operation that AWS does not have."""
    if _model(service) is None:
        return "", {}
    request = Request({**environ, "wsgi.input": io.BytesIO()})
    try:
        operation, labels = get_service_router(_MODELS.get(service, service)).match(request)
    except (HTTPException, NotImplementedError):
        return "", {}
    if service == _OBJECTS:
        token = request.args.get("continuation-token", "")
        return str(operation.name), {"prefix": request.args.get("prefix", ""), "ContinuationToken": token, **labels}
    parts = {"url_params": labels, "url_path": request.path, "values": request.args, "headers": request.headers}
    return str(operation.name), _parsed(operation, "rest-json", {**parts, "body": body, "method": request.method})


def _parsed(operation: OperationModel, protocol: str, request: dict[str, Any]) -> dict[str, Any]:
    return PROTOCOL_PARSERS[protocol](operation).parse(request)


@functools.cache
def _model(service: str) -> Any:
    try:
        return get_service_model(_MODELS.get(service, service))
    except UnknownServiceError:
        return None
