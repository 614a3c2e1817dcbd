"""The local cloud itself: control endpoints, keys, idle stop, a single start, and moto's requirements."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace

import boto3
import pytest
from botocore.exceptions import ClientError
from fleet_fakes import FakeClock, FakeRunner
from moto.awslambda.models import lambda_backends
from moto.ec2.models import ec2_backends, instance_types
from moto.efs.models import efs_backends
from stack_fakes import HANDLE, TOPIC, Stacks, stacks, waits
from unlucky import Unlucky

from localcloud.api import moto_setup
from localcloud.api.http import HttpServer
from localcloud.context import Context
from localcloud.daemon import endpoint_file, lifecycle
from localcloud.daemon.control import Control
from localcloud.daemon.server import IDLE_S, IdleWatch


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        running.runner.nodes = list  # type: ignore[attr-defined]
        yield running


@pytest.mark.parametrize("service", ["cloudformation", "ec2", "sqs", "efs", "iam", "lambda"])
def test_a_key_that_was_not_issued_here_is_refused_in_each_protocol(cloud, service):
    cloud.context.issued["AKIA" + "X" * 16] = stranger = cloud.context.issue("admin")
    del cloud.context.issued[stranger.access_key_id]
    client = cloud.new_client(service)
    client._request_signer._credentials.access_key = stranger.access_key_id
    calls = {"cloudformation": "describe_stacks", "ec2": "describe_vpcs", "sqs": "list_queues", "iam": "list_roles"}
    call = calls.get(service, "describe_file_systems" if service == "efs" else "list_functions")
    said = "not able to validate the provided" if service == "ec2" else "token included in the request is invalid"
    with pytest.raises(ClientError, match=said):
        getattr(client, call)()


class Asker:
    """Calls the control endpoints through WSGI."""

    def __init__(self, cloud: Stacks) -> None:
        self.stopped: list[bool] = []
        self.touched = 0
        control = Control(cloud.context, cloud.engine, "s3cret", "range", 4711, lambda: self.stopped.append(True))
        self.app = control.around(lambda environ, start: start("418 Teapot", []) or [b""], self._touch)

    def _touch(self) -> None:
        self.touched += 1

    def __call__(self, method: str, path: str, document: object = None, key: str = "s3cret") -> tuple[str, dict]:
        from io import BytesIO

        shown: list[str] = []
        body = json.dumps(document).encode() if document is not None else b""
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "HTTP_X_LOCALCLOUD_KEY": key,
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": BytesIO(body),
        }
        answer = b"".join(self.app(environ, lambda status, headers: shown.append(status)))
        return shown[0][:3], json.loads(answer or b"{}")


def test_control_endpoints_need_the_key_and_leave_the_rest_alone(cloud):
    ask = Asker(cloud)
    assert ask("GET", "/_localcloud/status", key="wrong")[0] == "403"
    assert ask("GET", "/_localcloud/nothing")[0] == "404"
    assert ask("GET", "/other")[0] == "418"
    assert ask.touched == 3


def test_the_status_says_from_which_image_a_node_runs_and_of_which_stack_it_is(cloud, monkeypatch):
    ami = moto_setup.FULL_IMAGES["debian-12"]
    made = cloud.client("ec2").run_instances(ImageId=ami, InstanceType="c5.large", MinCount=1, MaxCount=1)
    (instance_id,) = [one["InstanceId"] for one in made["Instances"]]
    node = SimpleNamespace(**dict.fromkeys(("pid", "address", "vpc_id", "alive", "hostname", "console"), ""))
    node.rate_bit_s = node.delay_s = 0
    nodes = [SimpleNamespace(**vars(node), instance_id=one) for one in (instance_id, "i-0fa1a9c0de0000000")]
    monkeypatch.setattr(cloud.runner, "nodes", lambda: nodes, raising=False)
    shown = [
        tuple(one[key] for key in ("image", "image_id", "stack"))
        for one in Asker(cloud)("GET", "/_localcloud/status")[1]["nodes"]
    ]
    assert shown == [("debian-12", ami, ""), ("", "", "")]
    cloud.client("ec2").terminate_instances(InstanceIds=[instance_id])


def test_stop_is_refused_while_there_are_stacks_unless_forced(cloud):
    ask = Asker(cloud)
    stack = cloud.create({"Handle": HANDLE, "Wait": waits()})
    name = cloud.describe(stack)["StackName"]
    assert {"name": name, "status": "CREATE_IN_PROGRESS"} in ask("GET", "/_localcloud/status")[1]["stacks"]
    status, answer = ask("POST", "/_localcloud/stop", {})
    assert (status, name in str(answer["stacks"])) == ("409", True)
    assert ask("POST", "/_localcloud/stop", {"force": True})[0] == "200"
    assert ask.stopped == []  # the answer is sent first
    cloud.clock.advance(1)
    assert ask.stopped == [True]
    cloud.deleted(stack)


def test_faults_and_their_mistakes(cloud):
    ask = Asker(cloud)
    assert ask("POST", "/_localcloud/faults", {"capacity": {"p5.48xlarge": 0}})[0] == "200"
    status, answer = ask("POST", "/_localcloud/faults", {"meteor": 1})
    assert (status, "unknown fault meteor" in answer["message"]) == ("400", True)


def test_it_stops_half_a_minute_after_the_last_stack_and_request(tmp_path):
    clock, stopped, needed = FakeClock(), [], [True]
    context = Context(runner=FakeRunner(), state=tmp_path, url_host="", clock=clock)  # type: ignore[arg-type]
    watch = IdleWatch(context, lambda: needed[0], lambda: stopped.append(clock.now()))
    clock.advance(10 * IDLE_S)
    needed[0] = False
    clock.advance(IDLE_S / 2)
    watch.touch()
    clock.advance(IDLE_S / 2)
    assert not stopped
    clock.advance(IDLE_S / 2)
    assert len(stopped) == 1


def test_a_name_that_moto_lacks_is_named():
    moto_setup.check_names()
    with pytest.raises(moto_setup.MotoMismatch, match=r"has no moto\.ec2\.models\.EC2Backend\.run_instanzes"):
        moto_setup.check_names(["moto.ec2.models.EC2Backend.run_instanzes"])


def test_sessions_share_a_loader_that_looks_into_each_directory_once():
    first, *_, last = (boto3.Session()._session.get_component("data_loader") for _ in range(3))
    assert first is last
    assert len(last.search_paths) == len(set(last.search_paths))


def test_another_version_of_moto_is_refused(monkeypatch):
    monkeypatch.setattr(moto_setup, "MOTO_VERSION", "5.2.6")
    with pytest.raises(moto_setup.MotoMismatch, match=r"needs moto 5\.2\.6, found: 5\.2\.5\ninstall it"):
        moto_setup.check_version()


def test_a_region_is_read_when_it_is_asked_for():
    """The fakes import moto in the quick way; no other test uses this region."""
    offerings: dict = instance_types.INSTANCE_TYPE_OFFERINGS["availability-zone"]
    assert "ap-south-1" not in list(offerings)
    ec2 = ec2_backends["123456789012"]["ap-south-1"]
    families = ("IMAGES", "FULL_IMAGES", "AMAZON_LINUX", "AMAZON_LINUX_FOR_TRAINING")
    assert set(ec2.amis) == {image for family in families for image in getattr(moto_setup, family).values()}
    assert all(re.fullmatch("ami-[0-9a-f]{17}", image) for image in ec2.amis), "RunInstances refuses other ids"
    offers = ec2.describe_instance_type_offerings("availability-zone", {"instance-type": ["c5.large"]})
    assert {offer["Location"] for offer in offers} >= {"ap-south-1a", "ap-south-1b"}
    assert "ap-south-1" in list(offerings)
    assert instance_types.INSTANCE_TYPE_OFFERINGS["region"].get("nowhere-1", []) == []


@pytest.mark.parametrize("backends", [efs_backends, lambda_backends, ec2_backends])
def test_every_service_knows_its_regions(backends):
    assert {"eu-west-1", "us-east-1"} <= set(backends["123456789012"].regions)


def test_a_second_start_finds_the_first_one(tmp_path):
    holder = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    endpoint_file.write(tmp_path, endpoint_file.process_record(os.getpid()))
    assert lifecycle._lock(tmp_path) is None
    os.close(holder)
    taken = lifecycle._lock(tmp_path)
    assert taken is not None
    os.close(taken)


def test_a_lock_that_never_becomes_free_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(lifecycle, "START_TIMEOUT_S", -1.0)
    holder = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(lifecycle.CannotStart, match=r"holds .*lock and does not answer\nend it .localcloud stop"):
        lifecycle._lock(tmp_path)
    os.close(holder)


@pytest.mark.parametrize("mode", [0o750, 0o705])
def test_a_state_directory_that_others_can_enter_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(lifecycle.CannotStart, match=r"only you may enter it\n.*chmod 700"):
        lifecycle.start(lifecycle.Options(tmp_path, (), (), "auto"))
    assert not list(tmp_path.iterdir())


def test_a_daemon_that_does_not_answer_in_time_is_ended(tmp_path):
    code = f"""
import os, pathlib, time
from localcloud.daemon import lifecycle
lifecycle.START_TIMEOUT_S, lifecycle._daemon = 0.05, lambda *_: time.sleep(600)
lifecycle._check_moto, lifecycle._mode = lambda: None, lambda _: ("single", ())
try:
    lifecycle.start(lifecycle.Options(pathlib.Path({str(tmp_path)!r}), (), (), "auto"))
except lifecycle.CannotStart as reason:
    print(reason, "signal", os.wait()[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "did not answer within 0.05 s" in done.stdout
    assert done.stdout.endswith(f"localcloud.log signal {signal.SIGTERM}\n")


def test_it_keeps_serving_after_a_failed_accept():
    def app(_environ, start_response):
        start_response("204 No Content", [])
        return []

    server = HttpServer(app, socket.create_server(("127.0.0.1", 0)))
    listener = Unlucky(socket.create_server(("127.0.0.1", 0)))
    server.attach(listener, "vpc-1")  # type: ignore[arg-type]
    with urllib.request.urlopen("http://{}:{}".format(*listener.getsockname()), timeout=120) as answer:
        assert (answer.status, listener.failed) == (204, True)
    server.close()


def test_it_accepts_the_next_connection_before_the_thread_of_the_last_one_runs(monkeypatch):
    def app(_environ, start_response):
        start_response("204 No Content", [])
        return []

    server = HttpServer(app, listener := socket.create_server(("127.0.0.1", 0)))
    never = threading.Event()
    monkeypatch.setattr(threading.Thread, "start", lambda *_: never.wait(240))
    with urllib.request.urlopen("http://{}:{}".format(*listener.getsockname()), timeout=120) as answer:
        assert answer.status == 204
    never.set()
    server.close()


def test_asking_where_nothing_runs(tmp_path, capsys):
    from localcloud.__main__ import main

    assert main(["status", "--state", str(tmp_path)]) == 1
    assert "no local cloud answers in" in capsys.readouterr().err


def test_preloading_is_quiet_and_changes_nothing(cloud):
    moto_setup.preload("123456789012")
    assert cloud.settled(cloud.create({"Topic": TOPIC})) == "CREATE_COMPLETE"


def test_nagles_algorithm_delays_no_answer():
    def app(environ, start_response):
        start_response("200 OK", [])
        return [b"%d" % environ["werkzeug.socket"].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)]

    server = HttpServer(app, listener := socket.create_server(("127.0.0.1", 0)))
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=120) as answer:
        assert answer.read() == b"1"
    server.close()


@pytest.mark.parametrize("length", ["-1", "+5", "1_0", "nine"])
def test_a_body_of_no_length_is_not_read(length):
    """Otherwise any process of a node could fill this machine's memory, which nothing limits here."""

    def app(environ, start_response):
        body = environ["wsgi.input"].read(min(int(environ.get("CONTENT_LENGTH") or 0), 64))
        start_response("200 OK", [("Content-Length", "2")])
        return [b"%02d" % len(body)]

    server = HttpServer(app, listener := socket.create_server(("127.0.0.1", 0)))
    with socket.create_connection(listener.getsockname(), timeout=30) as client:
        client.sendall(f"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode() + b"x" * 1000)
        with client.makefile("rb") as answer:
            said = answer.read()  # until the server closes
    assert said.startswith(b"HTTP/1.1 200") and said.endswith(b"00")
    server.close()


def broken(*_args):
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("service", ["cloudformation", "dynamodb"])
def test_a_service_that_breaks_is_answered_as_one_that_is_not_served(cloud, monkeypatch, service, caplog):
    monkeypatch.setattr("localcloud.api.app.CloudFormationApi._dispatch", broken)
    monkeypatch.setattr("localcloud.api.app.MOTO.get_application", broken)
    call = {"cloudformation": "describe_stacks", "dynamodb": "list_tables"}[service]
    with pytest.raises(ClientError, match=r"UnsupportedOperation.*as requested; see localcloud\.log"):
        getattr(cloud.client(service), call)()
    assert "a bug" in caplog.text


@pytest.mark.parametrize("service", ["cloudformation", "dynamodb"])
def test_an_unexpected_exception_is_answered_as_an_internal_failure(cloud, monkeypatch, service, caplog):
    monkeypatch.setattr("localcloud.api.throttling._is_throttled", broken)
    call = {"cloudformation": "describe_stacks", "dynamodb": "list_tables"}[service]
    with pytest.raises(ClientError, match=r"InternalFailure.*see localcloud\.log"):
        getattr(cloud.client(service), call)()
    assert "a bug" in caplog.text


def test_an_unsigned_request_is_refused(cloud):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(cloud.context.url_host)
    assert refused.value.code == 403
    refused.value.close()
