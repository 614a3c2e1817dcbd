"""Where nodes may connect, and how: never to this machine itself, and through its proxy if it has one."""

from __future__ import annotations

import base64
import ipaddress
import socket
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

from localcloud.nodes.machine import PUBLIC_NETWORK

CONNECT_TIMEOUT_S = 30.0
_PUBLIC = ipaddress.ip_network(PUBLIC_NETWORK)
_MAX_ANSWER_BYTES = 1 << 14
_LOOKUP_TIMEOUT_S = 1.0
_UNKNOWN_FOR_S = 60.0
_MOST_UNKNOWN = 1024
_unknown_until: dict[str, float] = {}


class Refused(OSError):  # noqa: N818 - an answer, not a fault
    """Nodes may not connect to this address."""


def is_open() -> bool:
    """Whether this machine has a way out at all; querying an unreachable name server would take seconds."""
    return bool(urllib.request.getproxies_environment()) or _has_default_route()


def proxy_for(host: str) -> str | None:
    """Return the proxy in this machine's settings for TLS connections to a host, or None."""
    proxies = urllib.request.getproxies_environment()
    proxy = proxies.get("https") or proxies.get("http") or proxies.get("all")
    # Python's own, undocumented handling of no_proxy.
    bypass = urllib.request.proxy_bypass_environment  # pyright: ignore[reportAttributeAccessIssue]
    return None if proxy is None or bypass(host, proxies) else proxy


def connect(host: str, port: int) -> socket.socket:
    """Connect to a host, given by name or address. Raises OSError."""
    if _is_literal(host):
        _refuse_own(host)
    proxy = proxy_for(host)
    if proxy is None:
        return _connect_directly(host, port)
    # The proxy may run on this machine, where these names lead to services that nodes must not reach.
    _refuse_this_machine(host)
    connection = _connect_through(proxy, host, port)
    try:
        # It has resolved the name itself, which may have had another address by then.
        _refuse_this_machine(host)
    except Refused:
        connection.close()
        raise
    return connection


def _connect_directly(host: str, port: int) -> socket.socket:
    # Connect to the address that was checked: the name may resolve to another one a moment later.
    address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    _refuse_own(address)
    return socket.create_connection((address, port), CONNECT_TIMEOUT_S)


def _connect_through(proxy: str, host: str, port: int) -> socket.socket:
    """Connect through this machine's proxy, which its settings may place on this machine."""
    where = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if where.scheme != "http" or not where.hostname:
        raise Refused("only proxies with http:// URLs are supported")
    connection = socket.create_connection((where.hostname, where.port or 80), CONNECT_TIMEOUT_S)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    request = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{_authorization(where)}\r\n"
    try:
        connection.sendall(request.encode())
        _expect_success(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _authorization(where: urllib.parse.SplitResult) -> str:
    if where.username is None:
        return ""
    credentials = f"{urllib.parse.unquote(where.username)}:{urllib.parse.unquote(where.password or '')}"
    return f"Proxy-Authorization: Basic {base64.b64encode(credentials.encode()).decode()}\r\n"


def _expect_success(connection: socket.socket) -> None:
    """Read the proxy's answer and not a byte more: what follows belongs to the node."""
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte or len(answer) > _MAX_ANSWER_BYTES:
            raise ConnectionError("the proxy closed the connection")
        answer += byte
    status = answer.split(b"\r\n", 1)[0].decode(errors="replace")
    if status.split(" ")[1:2] != ["200"]:
        raise ConnectionError(f"the proxy answered {status}")


def _refuse_own(address: str) -> None:
    if _is_own(address):
        raise Refused(f"nodes can't connect to {address}: it is this machine's, a node's, link-local or multicast")


def _is_own(address: str) -> bool:
    """Whether it is an address of this machine or its nodes, link-local, unspecified or multicast."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return (
        ip in _PUBLIC or ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast or _is_ours(str(ip))
    )


def _refuse_this_machine(name: str) -> None:
    plain = name.rstrip(".").lower()
    if (
        plain in ("localhost", socket.gethostname().lower())
        or plain.endswith(".localhost")
        or any(map(_is_own, _known_here(name)))
    ):
        raise Refused(f"nodes can't connect to {name}: it is this machine")


def _known_here(name: str) -> tuple[str, ...]:
    """Return the name's addresses now, if this machine can resolve it quickly.

    Behind a proxy the name servers may be unreachable, and each query may take seconds: what is unknown stays so for a
    minute.
    """
    if time.monotonic() < _unknown_until.get(name, 0.0):
        return ()
    found: list[str] = []

    def ask() -> None:
        try:
            found.extend(str(address[0]) for *_, address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            return  # only the proxy knows it

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_LOOKUP_TIMEOUT_S)
    if not found:
        if len(_unknown_until) >= _MOST_UNKNOWN:
            _unknown_until.clear()
        _unknown_until[name] = time.monotonic() + _UNKNOWN_FOR_S
    return tuple(found)


def _is_ours(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _has_default_route() -> bool:
    """Whether the kernel lists a route to destination 0 with mask (or prefix length) 0 that is not through loopback."""
    for line in _lines("/proc/net/route"):
        fields = line.split()
        if len(fields) > 7 and fields[1] == fields[7] == "00000000":
            return True
    for line in _lines("/proc/net/ipv6_route"):
        fields = line.split()
        if len(fields) > 9 and fields[0] == "0" * 32 and fields[1] == "00" and fields[9] != "lo":
            return True
    return False


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
