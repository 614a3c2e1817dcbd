"""The nodes' NAT gateway: what they may reach, how names are resolved, and which pip settings they get."""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from localcloud.network.nat import gateway, routes
from localcloud.network.nat.names import Names
from localcloud.nodes import pip_settings


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("https_proxy", "http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def query(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def answered(reply: bytes) -> tuple[int, list[str]]:
    """Parse a reply; return (code, addresses)."""
    number, flags, _, count, *_ = struct.unpack_from("!HHHHHH", reply)
    assert number == 7
    assert flags & 0x8000
    return flags & 0xF, [socket.inet_ntoa(reply[len(reply) - 16 * (i + 1) :][12:16]) for i in reversed(range(count))]


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.9.9.9", "0.0.0.0", "169.254.169.254", "::1", "::ffff:127.0.0.1", "224.0.0.1", "198.19.7.7"],
)
def test_this_machine_itself_is_not_reachable(address):
    with pytest.raises(routes.Refused, match="nodes can't connect to"):
        routes.connect(address, 80)


def test_a_name_that_means_this_machine_is_refused_too():
    with pytest.raises(routes.Refused, match="nodes can't connect to"):
        routes.connect("localhost", 80)


@pytest.mark.parametrize("name", ["localhost", "LocalHost.", "a.localhost", "127.1", socket.gethostname()])
def test_a_name_that_means_this_machine_is_not_asked_of_the_proxy(monkeypatch, name):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(routes, "_connect_through", lambda *_: pytest.fail("the proxy was asked"))
    with pytest.raises(routes.Refused, match="nodes can't connect to"):
        routes.connect(name, 80)


@pytest.mark.parametrize("before", [0, 1])
def test_a_name_that_comes_to_mean_this_machine_is_refused_behind_a_proxy(monkeypatch, before):
    """Before the proxy is asked, or while it resolves the name itself."""
    answers = iter(["203.0.113.9"] * (1 + before) + ["127.0.0.1"] * 9)

    def look_up(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(2, 1, 6, "", (next(answers), 0))]

    ours, theirs = socket.socketpair()
    monkeypatch.setenv("https_proxy", "http://proxy.test:3128")
    monkeypatch.setattr(routes, "_connect_through", lambda *_: theirs)
    monkeypatch.setattr(routes.socket, "getaddrinfo", look_up)
    with ours, pytest.raises(routes.Refused, match="it is this machine"):
        for _ in range(1 + before):
            routes.connect("rebinding.test", 80).close()
    assert theirs.fileno() == -1


def test_names_that_only_the_proxy_knows_are_looked_up_once_a_minute(monkeypatch):
    looked_up: list[object] = []

    def look_up(*arguments: object, **_: object) -> list[tuple[object, ...]]:
        looked_up.append(arguments[0])
        raise OSError

    monkeypatch.setenv("https_proxy", "http://proxy.test:3128")
    monkeypatch.setattr(routes, "_connect_through", lambda *_: socket.socket())
    monkeypatch.setattr(routes.socket, "getaddrinfo", look_up)
    for _ in range(3):
        routes.connect("unknown-here.test", 80).close()
    assert looked_up == ["unknown-here.test"]


def test_the_machines_own_proxy_is_asked_with_its_password(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("https_proxy", f"http://me:pass%40word@127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "inside.test")
        heard = []

        def serve() -> None:
            connection, _ = proxy.accept()
            with connection:
                heard.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\nhello")

        thread = threading.Thread(target=serve)
        thread.start()
        with routes.connect("index.test", 443) as connection:
            assert connection.recv(5) == b"hello"
        thread.join(60)
    assert heard[0].startswith(b"CONNECT index.test:443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic bWU6cGFzc0B3b3Jk\r\n" in heard[0]
    assert routes.proxy_for("a.inside.test") is None


def test_a_proxys_refusal_is_reported(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")

        def refuse() -> None:
            with proxy.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 407 Who are you?\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(ConnectionError, match="407 Who are you"):
            routes.connect("index.test", 443)
        thread.join(60)


def test_names_are_answered_as_this_machine_resolves_them(monkeypatch):
    monkeypatch.setattr(routes, "is_open", lambda: True)
    assert answered(Names().answer(query("localhost"))) == (0, ["127.0.0.1"])
    assert answered(Names().answer(query("localhost", kind=28))) == (0, [])
    assert answered(Names().answer(query("1.0.0.10.in-addr.arpa", kind=12))) == (3, [])


@pytest.mark.parametrize("domain", ["ec2.internal", "eu-west-1.compute.internal", "EC2.internal"])
def test_an_instances_name_has_its_address_also_without_a_way_out(monkeypatch, domain):
    monkeypatch.setattr(routes, "is_open", lambda: False)
    assert answered(Names().answer(query(f"ip-10-0-1-12.{domain}"))) == (0, ["10.0.1.12"])
    assert answered(Names().answer(query(f"ip-10-0-1-256.{domain}"))) == (3, [])


PUBLIC = "ec2-198-19-113-5.compute-1.amazonaws.com"


def test_a_public_name_has_the_private_address_in_its_own_vpc(monkeypatch):
    monkeypatch.setattr(routes, "is_open", lambda: False)
    names = Names()
    names.learn("vpc-1", {"is_on": True, "has_host_names": True, "public": {PUBLIC: "10.0.1.12"}})
    assert answered(names.answer(query(PUBLIC.upper()), ("vpc-1", "10.0.1.13"))) == (0, ["10.0.1.12"])
    assert answered(names.answer(query(PUBLIC), ("vpc-2", "10.0.1.13"))) == (0, ["198.19.113.5"])
    names.forget("vpc-1")
    assert answered(names.answer(query(PUBLIC), ("vpc-1", "10.0.1.13"))) == (0, ["198.19.113.5"])
    real = query("ec2-54-214-113-5.compute-1.amazonaws.com")
    assert answered(names.answer(real, ("vpc-1", "10.0.1.13"))) == (2, [])


@pytest.mark.parametrize("name", ["ip-10-0-1-12.ec2.internal", "fs-0123.efs.us-east-1.amazonaws.com"])
def test_without_host_names_a_vpc_has_no_names_of_its_own(monkeypatch, name):
    monkeypatch.setattr(routes, "is_open", lambda: True)
    names, here = Names(), ("vpc-1", "10.0.1.12")
    names.tell(here, {"fs-0123.efs.us-east-1.amazonaws.com": "10.0.1.5"})
    names.learn("vpc-1", {"is_on": True, "has_host_names": False, "public": {}})
    assert answered(names.answer(query(name), here)) == (3, [])
    assert answered(names.answer(query("localhost"), here)) == (0, ["127.0.0.1"])


@pytest.mark.parametrize("name", ["localhost", "ip-10-0-1-12.ec2.internal"])
def test_without_dns_support_a_vpc_resolves_nothing(monkeypatch, name):
    monkeypatch.setattr(routes, "is_open", lambda: True)
    names = Names()
    names.learn("vpc-1", {"is_on": False, "has_host_names": True, "public": {}})
    assert answered(names.answer(query(name), ("vpc-1", "10.0.1.12"))) == (5, [])


SERVICES = [
    "sqs.us-east-1.amazonaws.com", "EC2.eu-west-1.amazonaws.com", "ec2-fips.us-gov-west-1.amazonaws.com",
    "ec2.us-east-1.api.aws", "sqs.cn-north-1.amazonaws.com.cn", "ec2.eusc-de-east-1.amazonaws.eu", "iam.amazonaws.com",
    "sts.amazonaws.com", "us-east-1.queue.amazonaws.com", "lambda.cn-north-1.api.amazonwebservices.com.cn",
    "vpce-0123-4567.sqs.us-east-1.vpce.amazonaws.com", "vpce-0123-4567-us-east-1a.ec2.us-east-1.vpce.amazonaws.com",
]  # fmt: skip


@pytest.mark.parametrize("proxy", ["", "http://proxy.test:3128"])
@pytest.mark.parametrize("name", SERVICES)
def test_the_real_services_of_aws_are_found_by_no_name(monkeypatch, name, proxy):
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setattr(routes, "is_open", lambda: True)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("another server was asked"))
    assert answered(Names().answer(query(name))) == (3, [])


@pytest.mark.parametrize(
    "name",
    [
        "ossci-datasets.s3.amazonaws.com", "s3.us-east-1.amazonaws.com", "bucket.s3.eu-west-1.amazonaws.com",
        "s3-us-west-2.amazonaws.com", "s3.dualstack.us-east-1.amazonaws.com", "awscli.amazonaws.com",
        "checkip.amazonaws.com", "site-1.us-east-1.elb.amazonaws.com", "a1.execute-api.us-east-1.amazonaws.com",
        "sqs.us-east-1.amazonaws.com.test", "x-1.d.codeartifact.us-east-1.amazonaws.com",
    ],
)  # fmt: skip
def test_public_data_at_aws_is_found(monkeypatch, name):
    monkeypatch.setenv("https_proxy", "http://proxy.test:3128")
    monkeypatch.setattr(routes, "is_open", lambda: True)
    assert answered(Names().answer(query(name)))[1] != []


def test_a_file_system_has_a_name_only_where_it_has_a_mount_target(monkeypatch):
    monkeypatch.setattr(routes, "is_open", lambda: False)
    names, here, there = Names(), ("vpc-1", "10.0.1.12"), ("vpc-1", "10.0.2.12")
    name = "fs-0123.efs.us-east-1.amazonaws.com"
    names.tell(here, {name: "10.0.1.5"})
    assert answered(names.answer(query(name.upper()), here)) == (0, ["10.0.1.5"])
    assert answered(names.answer(query(name), there)) == (2, [])
    names.forget("vpc-1")
    assert answered(names.answer(query(name), here)) == (2, [])


@pytest.mark.parametrize("name", ["pypi.ec2.internal", "db.eu-west-1.compute.internal"])
def test_a_private_name_of_nobody_is_asked_of_nobody(monkeypatch, name):
    monkeypatch.setenv("https_proxy", "http://proxy.test:3128")
    assert answered(Names().answer(query(name))) == (3, [])


def test_without_a_way_out_a_name_fails_at_once(monkeypatch):
    monkeypatch.setattr(routes, "is_open", lambda: False)
    assert answered(Names().answer(query("index.test"))) == (2, [])


def test_behind_a_proxy_an_address_stands_for_the_name(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy.test:3128")
    names = Names()
    code, (address,) = answered(names.answer(query("index.test")))
    assert code == 0
    assert names.target_of(address) == "index.test"
    assert answered(names.answer(query("index.test"))) == (0, [address])
    assert names.target_of("203.0.113.9") == "203.0.113.9"


def test_a_node_that_asks_for_names_without_end_takes_no_address_of_another_s(monkeypatch):
    """Others' connections went to a name of its own, once it had asked for as many names as there are addresses."""
    monkeypatch.setattr("localcloud.network.nat.names._STAND_INS", ipaddress.ip_network("198.18.0.0/19"))
    monkeypatch.setenv("https_proxy", "http://proxy.test:3128")
    hostile, honest = ("vpc-1", "10.0.1.12"), ("vpc-1", "10.0.1.13")
    names = Names()
    _, (address,) = answered(names.answer(query("index.test"), honest))
    for number in range(1 << 13):
        names.answer(query(f"a{number}.test"), hostile)
    assert names.target_of(address) == "index.test"
    assert answered(names.answer(query("index.test"), honest)) == (0, [address])
    assert answered(names.answer(query("a1.test"), hostile))[0] == 0
    assert len(names) < 2000


@pytest.mark.parametrize("name", ["a\r\nHost: b.test", "a b.test", "a:80", "a/b.test", "a\0.test", "a%0d.test"])
def test_names_that_no_host_has_are_bad_queries(monkeypatch, name):
    monkeypatch.setenv("https_proxy", "http://proxy.test:3128")
    assert answered(Names().answer(query(name))) == (1, [])


@pytest.mark.parametrize("damaged", [b"", b"short", query("index.test")[:-3], b"\xff" * 40])
def test_damaged_queries_do_no_harm(damaged):
    assert len(Names().answer(damaged)) in (0, 12)


def test_pips_settings_go_along_with_what_they_name(tmp_path: Path):
    (tmp_path / "wheels").mkdir()
    (tmp_path / "mirror/simple").mkdir(parents=True)
    (tmp_path / ".pip").mkdir()
    file = f"[global]\nindex-url = file://{tmp_path}/mirror/simple\nfind-links = /nowhere\nno-cache-dir = true\n"
    (tmp_path / ".pip/pip.conf").write_text(file)
    environ = {"HOME": str(tmp_path), "PIP_FIND_LINKS": f"{tmp_path}/wheels", "REQUESTS_CA_BUNDLE": "/ca.pem"}
    settings = pip_settings.read(environ)
    assert f"index-url = file://{tmp_path}/mirror/simple\n" in settings.text
    assert f"find-links = {tmp_path}/wheels\n" in settings.text
    assert "cache" not in settings.text
    assert {tmp_path / "mirror", tmp_path / "wheels"} <= set(settings.paths)


@pytest.fixture
def outside(monkeypatch):
    """What the gateway connects to, as the ends of connections there."""
    ends: list[socket.socket] = []

    def connect(_host: str, _port: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        ends.append(ours)
        return theirs

    monkeypatch.setattr(routes, "connect", connect)
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def a_gateway(monkeypatch):
    """A gateway through which a node may have three connections."""
    monkeypatch.setattr(gateway, "_MOST_CONNECTIONS", 3)
    monkeypatch.setattr(gateway, "_MOST_QUERIES", 3)
    channel, other = socket.socketpair()
    with channel, other:
        yield gateway.Gateway(channel)


def through(a_gateway, listener, node) -> socket.socket:
    """Connect from a node."""
    connection = socket.create_connection(listener.getsockname(), timeout=60, source_address=(node, 0))
    a_gateway._serve("vpc-1", listener)
    return connection


def test_a_node_has_some_connections_to_the_outside_and_gets_a_reset_beyond(a_gateway, outside):
    with ExitStack() as held, socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(3):
            held.enter_context(through(a_gateway, listener, "127.0.0.2"))
        with through(a_gateway, listener, "127.0.0.2") as refused, pytest.raises(ConnectionResetError):
            refused.recv(1)
        held.enter_context(through(a_gateway, listener, "127.0.0.3"))
        while len(outside) < 4:
            pass


def test_a_connection_ends_with_its_other_end_and_counts_no_longer(a_gateway, outside):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for number in range(4):
            with through(a_gateway, listener, "127.0.0.2") as node:
                node.sendall(b"hello")
                while len(outside) == number:
                    pass
                assert outside[number].recv(5) == b"hello"
                outside[number].close()
                assert node.recv(1) == b""
                # The node has not closed its end.
                while a_gateway._connections._taken:
                    pass


def test_names_that_a_node_asks_for_too_fast_get_no_answer(a_gateway, monkeypatch):
    asked, go_on = threading.Semaphore(0), threading.Event()

    def answer(_query: bytes, _peer: object) -> bytes:
        asked.release()
        go_on.wait(60)
        return b"answer"

    monkeypatch.setattr(a_gateway._names, "answer", answer)
    with socket.socket(type=socket.SOCK_DGRAM) as door, socket.socket(type=socket.SOCK_DGRAM) as node:
        door.bind(("127.0.0.1", 0))
        node.settimeout(60)
        for _ in range(5):
            node.sendto(b"query", door.getsockname())
            a_gateway._serve("vpc-1", door)
        for _ in range(3):
            asked.acquire()
        go_on.set()
        assert [node.recv(10) for _ in range(3)] == [b"answer"] * 3
        while a_gateway._queries._taken:
            pass
        assert not asked.acquire(blocking=False)
