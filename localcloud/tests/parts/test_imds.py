"""The metadata service over real HTTP on loopback."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from localcloud.ec2.imds import Imds, InstanceFacts

TTL = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "X-aws-ec2-metadata-token"
ROLE = "demo-HeadRole-1"


def facts(instance_id: str = "i-1", public: str | None = "203.0.113.5", role: str | None = ROLE) -> InstanceFacts:
    return InstanceFacts(
        instance_id=instance_id,
        instance_type="c5.large",
        address="10.0.1.12",
        hostname="ip-10-0-1-12",
        zone="us-east-1b",
        region="us-east-1",
        image_id="ami-1",
        public_address=public,
        public_name="ec2-203-0-113-5.compute-1.amazonaws.com" if public else "",
        role_name=role,
        credentials=lambda: {"Code": "Success", "AccessKeyId": "ASIA1", "Token": "t"},
        tags={"Name": "demo"},
        user_data=b"#!/bin/sh\n\xff",
        architecture="arm64",
    )


class Service:
    """An Imds with a clock that tests control; all requests come from the instance `who`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.who: InstanceFacts | None = facts()
        self.asked: list[tuple[str, str]] = []
        self.imds = Imds(self._lookup, lambda: self.now_s)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.imds.attach("vpc-1", listener)

    def _lookup(self, vpc_id: str, address: str) -> InstanceFacts | None:
        self.asked.append((vpc_id, address))
        return self.who

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def token(self, ttl_s: str = "60") -> str:
        status, body = self.ask("PUT", "/latest/api/token", {TTL: ttl_s})
        assert status == 200
        return body.decode()

    def get(self, path: str) -> str:
        status, body = self.ask("GET", f"/latest/{path}", {TOKEN: self.token()})
        assert status == 200, path
        return body.decode()

    def status(self, path: str) -> int:
        return self.ask("GET", f"/latest/{path}", {TOKEN: self.token()})[0]


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    service = Service()
    yield service
    service.imds.detach("vpc-1")


@pytest.fixture
def service(running: Service) -> Service:
    running.who = facts()
    running.now_s = 0.0
    return running


def test_a_request_too_many_is_answered_with_429_for_the_token_and_for_documents(service: Service) -> None:
    busy = iter([False, True, True, False, False])
    service.who = replace(facts(), must_wait=lambda: next(busy))
    headers = {TOKEN: service.token()}
    assert service.ask("GET", "/latest/meta-data/instance-id", headers)[0] == 429
    assert service.ask("PUT", "/latest/api/token", {TTL: "60"})[0] == 429
    assert service.ask("GET", "/latest/meta-data/instance-id", headers) == (200, b"i-1")
    assert service.token()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("meta-data/instance-id", "i-1"),
        ("meta-data/instance-type", "c5.large"),
        ("meta-data/local-ipv4", "10.0.1.12"),
        ("meta-data/public-ipv4", "203.0.113.5"),
        ("meta-data/public-hostname", "ec2-203-0-113-5.compute-1.amazonaws.com"),
        ("meta-data/hostname", "ip-10-0-1-12.ec2.internal"),
        ("meta-data/local-hostname", "ip-10-0-1-12.ec2.internal"),
        ("meta-data/ami-id", "ami-1"),
        ("meta-data/placement/availability-zone", "us-east-1b"),
        ("meta-data/placement/region", "us-east-1"),
        ("meta-data/placement/", "availability-zone\nregion"),
        ("meta-data/mac", "0a:ff:0a:00:01:0c"),
        ("meta-data/network/interfaces/macs/", "0a:ff:0a:00:01:0c/"),
        ("meta-data/network/interfaces/macs/0a:ff:0a:00:01:0c/local-ipv4s", "10.0.1.12"),
        ("meta-data/iam/", "info\nsecurity-credentials/"),
        ("meta-data/iam/security-credentials/", ROLE),
        ("meta-data/iam/security-credentials", ROLE),
        ("meta-data/tags/instance/Name", "demo"),
    ],
)
def test_what_an_instance_knows_of_itself(service: Service, path: str, value: str) -> None:
    assert service.get(path) == value


def test_documents(service: Service) -> None:
    assert json.loads(service.get(f"meta-data/iam/security-credentials/{ROLE}"))["AccessKeyId"] == "ASIA1"
    assert json.loads(service.get("meta-data/iam/info"))["Code"] == "Success"
    identity = json.loads(service.get("dynamic/instance-identity/document"))
    assert (identity["instanceId"], identity["region"], identity["privateIp"]) == ("i-1", "us-east-1", "10.0.1.12")
    assert identity["architecture"] == "arm64"
    assert service.ask("GET", "/latest/user-data", {TOKEN: service.token()}) == (200, b"#!/bin/sh\n\xff")


def test_a_dated_version_answers_as_latest_does(service: Service) -> None:
    assert service.ask("GET", "/2021-03-23/meta-data/instance-id", {TOKEN: service.token()}) == (200, b"i-1")


def test_a_notice_is_there_from_the_moment_that_ec2_gives_it(service: Service) -> None:
    """AWS: spot-instance-termination-notices."""
    service.who = replace(facts(), life_cycle="spot", taken_at=datetime(2026, 11, 22, 16, 2, tzinfo=timezone.utc))
    assert service.get("meta-data/instance-life-cycle") == "spot"
    notice = {"action": "terminate", "time": "2026-11-22T16:02:00Z"}
    assert json.loads(service.get("meta-data/spot/instance-action")) == notice
    assert service.get("meta-data/spot/termination-time") == notice["time"]


@pytest.mark.parametrize("path", ["meta-data/spot/instance-action", "meta-data/events/recommendations/rebalance", "x"])
def test_what_is_not_set_is_404(service: Service, path: str) -> None:
    assert service.status(path) == 404


def test_without_public_address_or_role_their_paths_are_404(service: Service) -> None:
    service.who = facts(public=None, role=None)
    assert [service.status(f"meta-data/{path}") for path in ("public-ipv4", "iam/security-credentials/")] == [404, 404]


def test_without_a_token_nothing_is_revealed(service: Service) -> None:
    assert service.ask("GET", "/latest/meta-data/instance-id")[0] == 401
    assert service.ask("GET", "/latest/meta-data/instance-id", {TOKEN: "made up"})[0] == 401


def test_a_token_is_for_one_instance_and_expires(service: Service) -> None:
    token = service.token("60")
    service.now_s = 59
    assert service.ask("GET", "/latest/meta-data/instance-id", {TOKEN: token})[0] == 200
    service.who = facts("i-2")
    assert service.ask("GET", "/latest/meta-data/instance-id", {TOKEN: token})[0] == 401
    service.who = facts("i-1")
    service.now_s = 61
    assert service.ask("GET", "/latest/meta-data/instance-id", {TOKEN: token})[0] == 401


@pytest.mark.parametrize("ttl_s", ["0", "21601", "-1", "soon", ""])
def test_a_token_needs_a_ttl_that_aws_accepts(service: Service, ttl_s: str) -> None:
    assert service.ask("PUT", "/latest/api/token", {TTL: ttl_s})[0] == 400


def test_a_proxied_request_gets_no_token(service: Service) -> None:
    assert service.ask("PUT", "/latest/api/token", {TTL: "60", "X-Forwarded-For": "10.0.0.9"})[0] == 403


def test_nothing_is_revealed_to_a_stranger(service: Service) -> None:
    service.who = None
    assert service.ask("PUT", "/latest/api/token", {TTL: "60"})[0] == 404
    assert service.asked[-1] == ("vpc-1", "127.0.0.1")


def test_a_client_that_hangs_up_leaves_no_traceback(service: Service, capfd: pytest.CaptureFixture[str]):
    before = threading.active_count()
    for sent in (b"GET /latest/meta", b"GET /latest/meta-data/ HTTP/1.1\r\n\r\n"):
        client = socket.create_connection(("127.0.0.1", service.port))
        client.sendall(sent)
        # Closed with a reset, as by a process that is killed with an answer unread.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    assert service.status("meta-data/") == 200
    deadline = time.monotonic() + 120
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "Traceback" not in capfd.readouterr().err


def test_a_client_with_all_the_connections_that_it_may_have_gets_no_more(service: Service):
    with ExitStack() as held:
        for _ in range(32):
            held.enter_context(socket.create_connection(("127.0.0.1", service.port)))
        assert service.ask("GET", "/latest/meta-data/")[0] == 503
    statuses = iter(lambda: service.ask("GET", "/latest/meta-data/")[0], 401)
    assert set(statuses) <= {503}
