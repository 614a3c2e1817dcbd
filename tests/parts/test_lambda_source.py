"""The stack's function as packed into the template, run against a real HTTP server."""

import ast
import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
import refusals

from phalanx.node.decision import FINAL
from phalanx.template.rendezvous import function_source

LAUNCH, ERROR = "autoscaling:EC2_INSTANCE_LAUNCH", "autoscaling:EC2_INSTANCE_LAUNCH_ERROR"


@pytest.fixture
def handle():
    """A wait handle: its `.url`, its `.puts` as (content type, document), and the `.status` that it answers."""
    handle = SimpleNamespace(puts=[], status=200)

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            handle.puts.append((self.headers["Content-Type"], json.loads(body)))
            self.send_response(handle.status)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    handle.url = f"http://127.0.0.1:{server.server_port}/handle?X-Amz-Signature=abc"
    yield handle
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def function(monkeypatch, handle):
    """The packed program with the environment from the template."""
    monkeypatch.setenv("HEAD_GROUP", "demo-head")
    monkeypatch.setenv("WAIT_HANDLE", handle.url)
    monkeypatch.setenv("FINAL", FINAL)
    program: dict[str, Any] = {"__name__": "index"}
    exec(compile(function_source(), "index.py", "exec"), program)
    made = Function(program)
    program["boto3"] = SimpleNamespace(client=made.client)
    return made


@dataclass
class Function:
    program: dict[str, Any]
    history: tuple[str, ...] = ("Failed",)
    """The status codes of the head's group's activities, newest first."""

    def client(self, service: str) -> Any:
        assert service == "autoscaling"
        return self

    def describe_scaling_activities(self, AutoScalingGroupName: str) -> dict[str, Any]:
        assert AutoScalingGroupName == "demo-head"
        return {"Activities": [{"StatusCode": code} for code in self.history]}

    def send(self, **message: Any) -> None:
        self.program["handler"](event(message), None)


def event(message):
    message = {
        "AutoScalingGroupName": "demo-head",
        "Event": LAUNCH,
        "StatusCode": "InProgress",
        "Progress": 50,
    } | message
    return {"Records": [{"EventSource": "aws:sns", "Sns": {"Message": json.dumps(message)}}]}


@pytest.mark.parametrize("message", refusals.FINAL)
def test_a_head_that_can_not_be_launched_fails_the_stack_with_auto_scalings_words(function, handle, message):
    function.send(Event=ERROR, StatusCode="Failed", StatusMessage=message, ActivityId="act-1", EC2InstanceId="")
    assert handle.puts == [
        (
            "",
            {
                "Status": "FAILURE",
                "UniqueId": "head-act-1",
                "Data": "",
                "Reason": f"The head could not be launched: {message}",
            },
        )
    ]


@pytest.mark.parametrize("message", refusals.PASSING)
@pytest.mark.parametrize(
    ("history", "fails"),
    [
        (("Failed",), False),
        (("Failed", "Cancelled"), False),
        (("Failed", "Cancelled", "Failed"), True),
        (("Failed", "Failed", "Successful", "Failed"), False),
        (("InProgress", "Failed", "Failed", "Failed"), True),
    ],
)
def test_a_launch_that_may_pass_fails_the_stack_at_the_third_failure(function, handle, message, history, fails):
    function.history = history
    for _ in range(2):  # SNS delivers at least once
        function.send(Event=ERROR, StatusMessage=message, ActivityId="act-1")
    reasons = {body["Reason"] for _, body in handle.puts}
    assert reasons == ({f"The head could not be launched: {message}"} if fails else set())


def test_a_long_reason_is_cut(function, handle):
    function.history = ("Failed",) * 3
    function.send(Event=ERROR, StatusMessage="", Description="x" * 9000)
    ((_, body),) = handle.puts
    assert len(json.dumps(body)) < 4096


@pytest.mark.parametrize(("status", "raises"), [(403, False), (503, True)])
def test_a_used_up_handle_is_no_error_but_a_failing_one_is_tried_again(function, handle, status, raises):
    """Lambda retries when the handler raises."""
    handle.status, function.history = status, ("Failed",) * 3
    if raises:
        with pytest.raises(Exception, match="503"):
            function.send(Event=ERROR, StatusMessage="no")
    else:
        function.send(Event=ERROR, StatusMessage="no")


@pytest.mark.parametrize(
    "message",
    [
        {"AutoScalingGroupName": "demo-workers", "Event": ERROR},
        {"EC2InstanceId": "i-1"},
        {"Event": "autoscaling:TEST_NOTIFICATION"},
        {"Event": "autoscaling:EC2_INSTANCE_TERMINATE", "EC2InstanceId": "i-1"},
    ],
)
def test_other_notifications_are_ignored(function, handle, message):
    function.send(**message)
    assert handle.puts == []


def test_the_packed_program_is_the_source_without_comments():
    packed = function_source()
    assert len(packed) < 4096
    assert '"""' not in packed
    assert "#" not in packed
    assert {node.name for node in ast.parse(packed).body if isinstance(node, ast.FunctionDef)} >= {"handler"}
