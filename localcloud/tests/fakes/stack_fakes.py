"""The local cloud's CloudFormation, through boto3 over HTTP, without nodes and with a clock that tests control."""

from __future__ import annotations

import functools
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wsgi_clients
from fleet_fakes import ADMINISTRATOR, REGION, FakeClock, FakeRunner, name, until

from localcloud.accounts import OWN
from localcloud.api import app as api
from localcloud.api import partitions
from localcloud.api.http import HttpServer
from localcloud.cloudformation.engine import Engine
from localcloud.context import Context, Issued

TOPIC = {"Type": "AWS::SNS::Topic"}
HANDLE = {"Type": "AWS::CloudFormation::WaitConditionHandle"}


def waits(handle: str = "Handle", **properties: Any) -> dict[str, Any]:
    """Declare a wait condition of ten minutes."""
    given = {"Handle": {"Ref": handle}, "Timeout": "600", **properties}
    return {"Type": "AWS::CloudFormation::WaitCondition", "Properties": given}


_current: dict[str, Any] = {}


@functools.cache
def _client(service: str) -> Any:
    """Return a client shared by all tests: making one takes longer than most tests."""
    return wsgi_clients.client(service, REGION, "http://local.cloud:4566", ADMINISTRATOR, lambda: _current["app"])


@dataclass
class Stacks:
    """The endpoint, with the queries that tests make."""

    context: Context
    engine: Engine
    clock: FakeClock
    runner: FakeRunner
    app: Any

    def client(self, service: str) -> Any:
        """Return the administrator's shared client for a service."""
        _current["app"] = self.app
        return _client(service)

    def new_client(self, service: str) -> Any:
        """Make a new client."""
        return self.client_in(REGION, service)

    def client_in(self, region: str, service: str) -> Any:
        """Make a client for another region."""
        return wsgi_clients.client(service, region, self.context.url_host, ADMINISTRATOR, lambda: self.app)

    def client_of(self, service: str, session: dict[str, str], region: str = REGION) -> Any:
        """Make a client with the credentials that AssumeRole returned."""
        issued = Issued(session["AccessKeyId"], session["SecretAccessKey"], session["SessionToken"], "")
        return wsgi_clients.client(service, region, self.context.url_host, issued, lambda: self.app)

    def plain_client(self, service: str) -> Any:
        """Make a client that sends requests unchecked: botocore refuses many of those that AWS refuses."""
        made = self.new_client(service)
        made._serializer = made._serializer._serializer
        return made

    def create(self, resources: dict[str, Any], **given: Any) -> str:
        """Start a stack of these resources (other sections with `sections=`); return its id."""
        sections = given.pop("sections", {})
        body = json.dumps({"Resources": resources, **sections})
        return self.cloudformation.create_stack(**{"StackName": name("stack"), "TemplateBody": body, **given})[
            "StackId"
        ]

    @property
    def cloudformation(self) -> Any:
        return self.client("cloudformation")

    def describe(self, stack: str) -> dict[str, Any]:
        return self.cloudformation.describe_stacks(StackName=stack)["Stacks"][0]

    def settled(self, stack: str) -> str:
        """Return the status once nothing is in progress."""
        found = self.engine.find(stack, REGION)
        until(lambda: found.status and not found.status.endswith("IN_PROGRESS"), f"{found.name}: {found.status}")
        return found.status

    def made(self, resources: dict[str, Any], **given: Any) -> str:
        """Create a stack, which must become CREATE_COMPLETE; return its id."""
        stack = self.create(resources, **given)
        assert self.settled(stack) == "CREATE_COMPLETE", self.history(stack)
        return stack

    def updated(self, stack: str, resources: dict[str, Any], **given: Any) -> str:
        """Update a stack to these resources (other sections with `sections=`); return its final status."""
        sections = given.pop("sections", {})
        body = json.dumps({"Resources": resources, **sections})
        assert self.cloudformation.update_stack(StackName=stack, TemplateBody=body, **given)["StackId"] == stack
        return self.settled(stack)

    def deleted(self, stack: str) -> str:
        """Delete a stack; return its final status."""
        self.cloudformation.delete_stack(StackName=stack)
        return self.settled(stack)

    def events(self, stack: str) -> list[dict[str, Any]]:
        """Return a stack's events, oldest first."""
        pages = self.cloudformation.get_paginator("describe_stack_events").paginate(StackName=stack)
        return [event for page in pages for event in page["StackEvents"]][::-1]

    def history(self, stack: str) -> list[tuple[str, str, str]]:
        """Return (logical id, status, reason) of every event, oldest first."""
        return [
            (event["LogicalResourceId"], event["ResourceStatus"], event.get("ResourceStatusReason", ""))
            for event in self.events(stack)
        ]

    def reason(self, stack: str, logical_id: str, status: str) -> str:
        """Return the reason of one event."""
        return next(reason for who, what, reason in self.history(stack) if (who, what) == (logical_id, status))

    def status(self, stack: str, logical_id: str) -> str:
        """Return a resource's current status, without a request."""
        return self.engine.find(stack, REGION).resources[logical_id].status

    def physical(self, stack: str, logical_id: str) -> str:
        found = self.cloudformation.describe_stack_resource(StackName=stack, LogicalResourceId=logical_id)
        return found["StackResourceDetail"]["PhysicalResourceId"]

    def idle_physical(self, stack: str, logical_id: str) -> str:
        """Return a resource's physical id once the stack is idle."""
        self.engine.idle()
        return self.physical(stack, logical_id)

    def outputs(self, stack: str) -> dict[str, str]:
        return {output["OutputKey"]: output["OutputValue"] for output in self.describe(stack)["Outputs"]}


@contextmanager
def stacks(state: Path, profile: str = OWN) -> Iterator[Stacks]:
    """Serve the whole API of the local cloud on loopback, as that of an account of this profile."""
    runner, clock = FakeRunner(), FakeClock()
    listener = socket.create_server(("127.0.0.1", 0))
    url = "http://{}:{}".format(*listener.getsockname()[:2])
    served = {"url_host": url, "url_nodes": url, "clock": clock, "profile": profile}
    context = Context(runner=runner, state=state, **served)  # type: ignore[arg-type]
    context.issued[ADMINISTRATOR.access_key_id] = ADMINISTRATOR
    app, engine = api.build(context)
    http = HttpServer(app, listener)
    made = Stacks(context, engine, clock, runner, app)
    try:
        yield made
    finally:
        http.close()
        context.stop()
        # Of other clouds in this process.
        partitions.play(OWN)
