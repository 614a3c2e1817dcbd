"""The instance metadata service, version 2: one server for all nodes, told apart by VPC and source address."""

from __future__ import annotations

import io
import json
import re
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from localcloud.api import admission, partitions
from localcloud.api.admission import Incoming, Share
from localcloud.ec2 import identity
from localcloud.nodes.machine import mac_of

_MAX_TTL_S = 21600
_IDLE_TIMEOUT_S = 10
_MOST_CONNECTIONS = 32
_MOST_TOKENS = 1000
_TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN_HEADER = "X-aws-ec2-metadata-token"
_VERSION = re.compile(r"/(latest|\d{4}-\d{2}-\d{2})(/.*)?$")


@dataclass(frozen=True)
class InstanceFacts:
    """What an instance may know of itself; `key_pair` is its name and its public key.

    `credentials()` returns its role's credentials as in AWS's document (AccessKeyId, SecretAccessKey, Token,
    Expiration …). `tags` are those it may read: none unless its metadata options allow it. `must_wait()` is called once
    per request: whether it is one too many. `taken_at` is when EC2 takes a spot instance back. `is_served` is False if
    its metadata options turn the service off.
    """

    instance_id: str
    instance_type: str
    address: str
    hostname: str
    zone: str
    region: str
    image_id: str
    public_address: str | None
    role_name: str | None
    credentials: Callable[[], Mapping[str, Any]]
    tags: Mapping[str, str] = field(default_factory=dict)
    user_data: bytes = b""
    account: str = "123456789012"
    architecture: str = "x86_64"
    key_pair: tuple[str, str] = ("", "")
    domain: str = "amazonaws.com"
    must_wait: Callable[[], bool] = lambda: False
    life_cycle: str = "on-demand"
    taken_at: datetime | None = None
    is_served: bool = True
    public_name: str = ""


Lookup = Callable[[str, str], "InstanceFacts | None"]
Value = str | bytes | Callable[[], str]


def documents(facts: InstanceFacts) -> dict[str, Value]:
    """Return every document below /latest/ for this instance, by path; the directories between are listings."""
    return {
        **{f"meta-data/{path}": value for path, value in _metadata(facts).items()},
        "dynamic/instance-identity/document": (document := json.dumps(_identity(facts), indent=2)),
        "dynamic/instance-identity/signature": identity.signature(document),
        **({"user-data": facts.user_data} if facts.user_data else {}),
    }


def full_hostname(facts: InstanceFacts) -> str:
    """Return ip-10-0-1-12.ec2.internal, or ip-10-0-1-12.REGION.compute.internal outside us-east-1."""
    domain = "ec2.internal" if facts.region == "us-east-1" else f"{facts.region}.compute.internal"
    return f"{facts.hostname.partition('.')[0]}.{domain}"


def _metadata(facts: InstanceFacts) -> dict[str, Value]:
    hostname = full_hostname(facts)
    return {
        "ami-id": facts.image_id,
        "ami-launch-index": "0",
        "hostname": hostname,
        "instance-action": "none",
        "instance-id": facts.instance_id,
        "instance-life-cycle": facts.life_cycle,
        "instance-type": facts.instance_type,
        "local-hostname": hostname,
        "local-ipv4": facts.address,
        "mac": mac_of(facts.address),
        "placement/availability-zone": facts.zone,
        "placement/region": facts.region,
        "services/domain": facts.domain,
        "services/partition": partitions.played(),
        **_interface(facts),
        **_public(facts),
        **_role(facts),
        **_public_keys(facts),
        **_notice(facts),
        **{f"tags/instance/{key}": value for key, value in facts.tags.items()},
    }


def _interface(facts: InstanceFacts) -> dict[str, Value]:
    base = f"network/interfaces/macs/{mac_of(facts.address)}"
    public: dict[str, Value] = {f"{base}/public-ipv4s": facts.public_address} if facts.public_address else {}
    return {
        f"{base}/device-number": "0",
        f"{base}/local-hostname": full_hostname(facts),
        f"{base}/local-ipv4s": facts.address,
        f"{base}/mac": mac_of(facts.address),
        f"{base}/owner-id": facts.account,
        **public,
    }


def _public(facts: InstanceFacts) -> dict[str, Value]:
    """Return nothing, hence 404, without a public address."""
    if not facts.public_address:
        return {}
    name: dict[str, Value] = {"public-hostname": facts.public_name} if facts.public_name else {}
    return {"public-ipv4": facts.public_address, **name}


def _public_keys(facts: InstanceFacts) -> dict[str, Value]:
    """Return nothing, hence 404, without a key pair. The listing shows the key's name beside its number."""
    name, key = facts.key_pair
    return {"public-keys/": f"0={name}", "public-keys/0/openssh-key": key} if name else {}


def _notice(facts: InstanceFacts) -> dict[str, Value]:
    """Return nothing, hence 404, until EC2 takes the instance back (docs/aws-behaviour.md 2.16)."""
    if facts.taken_at is None:
        return {}
    moment = f"{facts.taken_at:%Y-%m-%dT%H:%M:%SZ}"
    action = json.dumps({"action": "terminate", "time": moment})
    return {"spot/instance-action": action, "spot/termination-time": moment}


def _role(facts: InstanceFacts) -> dict[str, Value]:
    """Return nothing, hence 404, without an instance profile."""
    if not facts.role_name:
        return {}
    profile = f"{partitions.arn()}:iam::{facts.account}:instance-profile/{facts.role_name}"
    info = {"Code": "Success", "InstanceProfileArn": profile, "InstanceProfileId": f"AIPA{facts.role_name}"}
    return {
        "iam/info": json.dumps(info, indent=2),
        f"iam/security-credentials/{facts.role_name}": lambda: json.dumps(dict(facts.credentials()), indent=2),
    }


def _identity(facts: InstanceFacts) -> dict[str, Any]:
    return {
        "accountId": facts.account,
        "architecture": facts.architecture,
        "availabilityZone": facts.zone,
        "imageId": facts.image_id,
        "instanceId": facts.instance_id,
        "instanceType": facts.instance_type,
        "privateIp": facts.address,
        "region": facts.region,
        "version": "2017-09-30",
    }


def find(tree: Mapping[str, Value], path: str) -> str | bytes | None:
    """Return the text at `path`, or the listing of the directory there (directories end in "/"); None means 404."""
    path = re.sub("/+", "/", path).strip("/")
    if path in tree:
        value = tree[path]
        return value() if callable(value) else value
    prefix = f"{path}/" if path else ""
    if prefix in tree:
        return str(tree[prefix])
    names = {name[len(prefix) :] for name in tree if name.startswith(prefix)}
    return "\n".join(sorted({first + slash for first, slash, _rest in (name.partition("/") for name in names)})) or None


class Tokens:
    """Session tokens: each is valid for the instance that requested it, until it expires, or has too many others."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._issued: dict[str, tuple[str, float]] = {}
        self._by_instance: dict[str, deque[str]] = {}
        self._lock = threading.Lock()

    def issue(self, instance_id: str, ttl_s: int) -> str:
        token = secrets.token_urlsafe(42)
        with self._lock:
            self._issued[token] = (instance_id, self._now() + ttl_s)
            mine = self._by_instance.setdefault(instance_id, deque())
            mine.append(token)
            if len(mine) > _MOST_TOKENS:
                del self._issued[mine.popleft()]
        return token

    def remaining_s(self, instance_id: str, token: str) -> int | None:
        """Return the seconds until the token expires, or None when it is not valid."""
        owner, end = self._issued.get(token, ("", 0.0))
        left = end - self._now()
        return int(left) if owner == instance_id and left > 0 else None


class Imds:
    """The service, with one listener per VPC; `lookup(vpc_id, source address)` identifies the instance that asks."""

    def __init__(self, lookup: Lookup, now: Callable[[], float] = time.monotonic) -> None:
        self._lookup = lookup
        self._tokens = Tokens(now)
        self._servers: dict[str, _Server] = {}

    def attach(self, vpc_id: str, listener: socket.socket) -> None:
        """Serve this listening socket on a thread of its own."""
        server = _Server(listener, self._tokens, lambda address: self._lookup(vpc_id, address))
        self._servers[vpc_id] = server
        threading.Thread(target=server.serve_forever, args=(0.1,), name=f"imds-{vpc_id}", daemon=True).start()

    def detach(self, vpc_id: str) -> None:
        """Stop serving a VPC and close its socket, if there is one."""
        server = self._servers.pop(vpc_id, None)
        if server:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, tokens: Tokens, lookup: Callable[[str], InstanceFacts | None]) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.tokens = tokens
        self.lookup = lookup
        self._connections = Share(_MOST_CONNECTIONS, _MOST_CONNECTIONS, 0)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error of the service, and none of a client that hangs up: a node that ends does."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to serve a connection, of which a node may have some; each VPC has a server of its own."""
        peer = "", client_address[0]
        serve = partial(self.process_request_thread, request, client_address)
        admission.admit(self._connections, peer, serve, partial(admission.turn_away, request))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "EC2ws"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._incoming = Incoming(self.connection)
        self.rfile = io.BufferedReader(self._incoming)

    def handle_one_request(self) -> None:
        self._incoming.expect(admission.HEADER_BYTES, _IDLE_TIMEOUT_S)
        super().handle_one_request()

    def do_PUT(self) -> None:
        facts = self._caller()
        if facts is None or self.path.rstrip("/") != "/latest/api/token":
            self._answer(HTTPStatus.NOT_FOUND if facts is None else HTTPStatus.METHOD_NOT_ALLOWED)
        elif facts.must_wait():
            self._answer(HTTPStatus.TOO_MANY_REQUESTS)
        elif "X-Forwarded-For" in self.headers or not facts.is_served:
            # A request that came through a proxy gets no token (EC2 User Guide, IMDSv2).
            self._answer(HTTPStatus.FORBIDDEN)
        elif not (ttl_s := _ttl_s(self.headers.get(_TTL_HEADER, ""))):
            self._answer(HTTPStatus.BAD_REQUEST)
        else:
            self._answer(HTTPStatus.OK, self._server().tokens.issue(facts.instance_id, ttl_s), ttl_s)

    def do_GET(self) -> None:
        facts = self._caller()
        if facts is None:
            self._answer(HTTPStatus.NOT_FOUND)
            return
        if facts.must_wait():
            self._answer(HTTPStatus.TOO_MANY_REQUESTS)
            return
        if not facts.is_served:
            self._answer(HTTPStatus.FORBIDDEN)
            return
        left_s = self._server().tokens.remaining_s(facts.instance_id, self.headers.get(_TOKEN_HEADER, ""))
        if left_s is None:
            self._answer(HTTPStatus.UNAUTHORIZED)
            return
        found = self._find(facts)
        self._answer(HTTPStatus.OK if found is not None else HTTPStatus.NOT_FOUND, found, left_s)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _server(self) -> _Server:
        return cast(_Server, self.server)

    def _caller(self) -> InstanceFacts | None:
        return self._server().lookup(self.client_address[0])

    def _find(self, facts: InstanceFacts) -> str | bytes | None:
        path = self.path.partition("?")[0]
        if path == "/":
            return "latest"
        match = _VERSION.match(path)
        return find(documents(facts), match[2] or "") if match else None

    def _answer(self, status: HTTPStatus, body: str | bytes | None = None, ttl_s: int | None = None) -> None:
        raw = body.encode() if isinstance(body, str) else body or b""
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(raw)))
        if ttl_s is not None:
            self.send_header(_TTL_HEADER, str(ttl_s))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a boot makes thousands of requests."""


def _ttl_s(text: str) -> int:
    """Parse the header; return 0 when it is missing or outside AWS's bounds."""
    return int(text) if text.isascii() and text.isdigit() and 1 <= int(text) <= _MAX_TTL_S else 0
