"""Lambda functions for tests: make one from source, call it, read what it logged, look for its processes."""

from __future__ import annotations

import io
import json
import textwrap
import zipfile
from contextlib import suppress
from pathlib import Path

from fleet_fakes import Cloud, name


def function(local: Cloud, source: str, *statements: dict, **settings) -> str:
    """Create a function whose index.py is `source`; return its name."""
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("index.py", textwrap.dedent(source))
    logs = {"Effect": "Allow", "Action": ["logs:CreateLogStream", "logs:PutLogEvents"], "Resource": "*"}
    role = local.role("lambda.amazonaws.com", logs, *statements)
    made = name("function")
    local.client("lambda").create_function(
        FunctionName=made,
        Role=f"arn:aws:iam::{local.context.account}:role/{role}",
        Runtime="python3.12",
        Handler="index.handler",
        Code={"ZipFile": code.getvalue()},
        **{"Timeout": 10, **settings},
    )
    return made


def invoke(local: Cloud, made: str, event=None, **options) -> dict:
    return local.client("lambda").invoke(FunctionName=made, Payload=json.dumps(event), **options)


def result(local: Cloud, made: str, event=None):
    answer = invoke(local, made, event)
    return json.loads(answer["Payload"].read())


def log_lines(local: Cloud, made: str) -> list[str]:
    pages = local.client("logs").get_paginator("filter_log_events").paginate(logGroupName=f"/aws/lambda/{made}")
    events = [event for page in pages for event in page["events"]]
    return [event["message"] for event in events]


def alive(made: str) -> bool:
    """Whether this machine has a process of the function."""
    variable = f"AWS_LAMBDA_FUNCTION_NAME={made}".encode()
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if variable in file.read_bytes().split(b"\0"):
                return True
    return False
