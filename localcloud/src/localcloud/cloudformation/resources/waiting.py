"""AWS::CloudFormation types: wait conditions and wait handles."""

from __future__ import annotations

import secrets

from localcloud.cloudformation.resources.registry import Made, Request, nothing, resource

WAIT_CONDITION = "AWS::CloudFormation::WaitCondition"
WAIT_HANDLE = "AWS::CloudFormation::WaitConditionHandle"
WAIT_PATH = "/waitcondition/"


@resource(WAIT_HANDLE, nothing, "Id")
def _handle(request: Request) -> Made:
    # AWS returns a presigned S3 URL: anyone who knows it may signal, so it must not be guessable.
    url = f"{request.context.url_nodes}{WAIT_PATH}{request.region}/{secrets.token_urlsafe(24)}"
    return Made(url, {"Id": url})


@resource(WAIT_CONDITION, nothing, "Data Id")
def _condition(request: Request) -> Made:
    # The engine waits for the signals and fills in Data when they have arrived.
    return Made(f"{request.stack_id}/{request.logical_id}", {"Id": request.logical_id, "Data": "{}"}, pending=True)
