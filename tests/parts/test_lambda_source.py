"""The stack's function as packed into the template, run against a local cloud and a real HTTP server."""

import ast
import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import resources
from types import SimpleNamespace
from typing import Any

import pytest
import refusals
from fleet_fakes import IMAGE, Cloud, cloud, until

from phalanx.node.decision import FINAL
from phalanx.template.rendezvous import FUNCTION_TIMEOUT_S, function_source

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


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    with cloud(tmp_path_factory.mktemp("state")) as made:
        yield made


@pytest.fixture(scope="module")
def subnet(local):
    return local.network()[1][0]


@pytest.fixture
def function(monkeypatch, handle, local, subnet):
    """The packed program with the environment from the template, and an address that is not associated."""
    address = local.client("ec2").allocate_address(Domain="vpc")["AllocationId"]
    monkeypatch.setenv("EIP_ALLOCATION_ID", address)
    monkeypatch.setenv("HEAD_GROUP", "demo-head")
    monkeypatch.setenv("WAIT_HANDLE", handle.url)
    monkeypatch.setenv("FINAL", FINAL)
    program = {"__name__": "index"}
    exec(compile(function_source(), "index.py", "exec"), program)
    made = Function(program, local, subnet, address)
    program |= {"time": SimpleNamespace(sleep=lambda seconds: None), "boto3": SimpleNamespace(client=made.client)}
    return made


@dataclass
class Function:
    program: dict[str, Any]
    local: Cloud
    subnet: str
    address: str
    history: tuple[str, ...] = ("Failed",)
    """The status codes of the head's group's activities, newest first."""

    def client(self, service: str) -> Any:
        return self if service == "autoscaling" else self.local.client(service)

    def describe_scaling_activities(self, AutoScalingGroupName: str) -> dict[str, Any]:  # noqa: N803 (boto3's name)
        assert AutoScalingGroupName == "demo-head"
        return {"Activities": [{"StatusCode": code} for code in self.history]}

    @property
    def ec2(self) -> Any:
        return self.local.client("ec2")

    def send(self, **message: Any) -> None:
        self.program["handler"](event(message), None)

    def launch(self) -> str:
        """Launch an instance and wait until it runs."""
        asked = {"ImageId": IMAGE, "MinCount": 1, "MaxCount": 1, "InstanceType": "c5.large", "SubnetId": self.subnet}
        instance_id = self.ec2.run_instances(**asked)["Instances"][0]["InstanceId"]
        until(lambda: self.state(instance_id) == "running")
        return instance_id

    def state(self, instance_id: str) -> str:
        (found,) = self.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
        return found["Instances"][0]["State"]["Name"]

    def holder(self) -> str | None:
        (found,) = self.ec2.describe_addresses(AllocationIds=[self.address])["Addresses"]
        return found.get("InstanceId") or None


def event(message):
    message = {
        "AutoScalingGroupName": "demo-head",
        "Event": LAUNCH,
        "StatusCode": "InProgress",
        "Progress": 50,
    } | message
    return {"Records": [{"EventSource": "aws:sns", "Sns": {"Message": json.dumps(message)}}]}


def test_a_launched_head_gets_its_address(function, handle):
    instance_id = function.launch()
    function.send(EC2InstanceId=instance_id)
    function.send(EC2InstanceId=instance_id)
    assert function.holder() == instance_id
    assert handle.puts == []


def test_a_replacement_takes_the_address_over(function):
    first, second = function.launch(), function.launch()
    function.send(EC2InstanceId=first)
    function.send(EC2InstanceId=second)
    assert function.holder() == second


def test_a_late_notification_of_a_gone_head_changes_nothing(function, handle):
    first, second = function.launch(), function.launch()
    function.send(EC2InstanceId=second)
    function.ec2.terminate_instances(InstanceIds=[first])
    function.send(EC2InstanceId=first)
    assert function.holder() == second
    assert handle.puts == []


def test_it_waits_until_the_instance_runs(function):
    instance_id = function.launch()
    states = iter(["pending", "pending", "running"])

    def describe(**_asked):
        return {"Reservations": [{"Instances": [{"State": {"Name": next(states)}}]}]}

    ec2 = SimpleNamespace(describe_instances=describe, associate_address=function.ec2.associate_address)
    function.program["boto3"] = SimpleNamespace(client=lambda _service: ec2)
    function.send(EC2InstanceId=instance_id)
    assert function.holder() == instance_id
    assert not list(states)


def test_an_instance_that_never_appears_is_given_up(function, handle):
    naps: list[int] = []
    function.program["time"].sleep = naps.append
    function.send(EC2InstanceId="i-0123456789abcdef0")
    assert naps == [1] * 90
    assert function.holder() is None
    assert handle.puts == []


def test_waiting_ends_before_the_function_is_killed(function):
    index = ast.parse((resources.files("phalanx.template") / "lambda_source" / "index.py").read_text())
    constants = {
        node.targets[0].id: ast.literal_eval(node.value) for node in index.body if isinstance(node, ast.Assign)
    }
    assert constants["ATTEMPTS"] * constants["PAUSE_S"] <= FUNCTION_TIMEOUT_S - 20


def test_an_address_that_can_not_be_given_fails_the_stack(function, handle, monkeypatch):
    instance_id = function.launch()
    monkeypatch.setenv("EIP_ALLOCATION_ID", "eipalloc-0")
    with pytest.raises(Exception, match="eipalloc-0"):
        function.send(EC2InstanceId=instance_id)
    ((_, body),) = handle.puts
    assert body["Status"] == "FAILURE"
    assert body["Reason"].startswith(f"The head {instance_id} could not get its address: ")


@pytest.mark.parametrize("words", refusals.FINAL)
def test_a_head_that_can_not_be_launched_fails_the_stack_with_auto_scalings_words(function, handle, words):
    function.send(Event=ERROR, StatusCode="Failed", StatusMessage=words, ActivityId="act-1", EC2InstanceId="")
    assert handle.puts == [
        (
            "",
            {
                "Status": "FAILURE",
                "UniqueId": "head-act-1",
                "Data": "",
                "Reason": f"The head could not be launched: {words}",
            },
        )
    ]


@pytest.mark.parametrize("words", refusals.PASSING)
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
def test_a_launch_that_may_pass_fails_the_stack_at_the_third_failure(function, handle, words, history, fails):
    function.history = history
    for _ in range(2):  # SNS delivers at least once
        function.send(Event=ERROR, StatusMessage=words, ActivityId="act-1")
    reasons = {body["Reason"] for _, body in handle.puts}
    assert reasons == ({f"The head could not be launched: {words}"} if fails else set())


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
        {"AutoScalingGroupName": "demo-workers", "EC2InstanceId": "i-1"},
        {"Event": "autoscaling:TEST_NOTIFICATION"},
        {"Event": "autoscaling:EC2_INSTANCE_TERMINATE", "EC2InstanceId": "i-1"},
    ],
)
def test_other_notifications_are_ignored(function, handle, message):
    function.send(**message)
    assert handle.puts == []
    assert function.holder() is None


def test_the_packed_program_is_the_source_without_comments():
    packed = function_source()
    assert len(packed) < 4096
    assert '"""' not in packed
    assert "#" not in packed
    assert {node.name for node in ast.parse(packed).body if isinstance(node, ast.FunctionDef)} >= {"handler"}
