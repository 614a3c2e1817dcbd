"""Where connections of nodes may go, and how: never to this machine itself; through its own proxy where it has one."""

from __future__ import annotations

import base64
import functools
import ipaddress
import socket
import threading
import urllib.parse
import urllib.request
from pathlib import Path

CONNECT_WITHIN_S = 30.0
_MOST_ANSWER_BYTES = 1 << 14
_KNOWN_WITHIN_S = 1.0


class Refused(OSError):  # noqa: N818 - an answer, not a fault
    """Nodes may not go there."""


def is_open() -> bool:
    """Has this machine a way out at all? (Asking a name server that can't be reached would take seconds.)"""
    return bool(urllib.request.getproxies_environment()) or _has_default_route()


def proxy_for(host: str) -> str | None:
    """The proxy that this machine's settings name for TLS connections to this host."""
    proxies = urllib.request.getproxies_environment()
    proxy = proxies.get("https") or proxies.get("http") or proxies.get("all")
    # Python's own reading of no_proxy, which is not in its documentation.
    bypass = urllib.request.proxy_bypass_environment  # pyright: ignore[reportAttributeAccessIssue]
    return None if proxy is None or bypass(host, proxies) else proxy


def connect(host: str, port: int) -> socket.socket:
    """A connection to this host, a name or an address. Raises OSError."""
    if _is_literal(host):
        _refuse_own(host)
    proxy = proxy_for(host)
    if proxy is None:
        return _connect_directly(host, port)
    # The proxy may run on this machine, where these names lead to what nodes must not reach.
    if _means_this_machine(host):
        raise Refused(f"{host} is this machine's own")
    return _connect_through(proxy, host, port)


def _connect_directly(host: str, port: int) -> socket.socket:
    # What was looked at is connected to, not the name again: that may mean another address a moment later.
    address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    _refuse_own(address)
    return socket.create_connection((address, port), CONNECT_WITHIN_S)


def _connect_through(proxy: str, host: str, port: int) -> socket.socket:
    """Ask this machine's proxy; it may listen on this machine, as its settings say so."""
    where = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if where.scheme != "http" or not where.hostname:
        raise Refused("only proxies with http:// URLs can be asked")
    connection = socket.create_connection((where.hostname, where.port or 80), CONNECT_WITHIN_S)
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
    words = f"{urllib.parse.unquote(where.username)}:{urllib.parse.unquote(where.password or '')}"
    return f"Proxy-Authorization: Basic {base64.b64encode(words.encode()).decode()}\r\n"


def _expect_success(connection: socket.socket) -> None:
    """Read the proxy's answer and no byte more: what follows it belongs to the node."""
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte or len(answer) > _MOST_ANSWER_BYTES:
            raise ConnectionError("the proxy closed the connection")
        answer += byte
    status = answer.split(b"\r\n", 1)[0].decode(errors="replace")
    if status.split(" ")[1:2] != ["200"]:
        raise ConnectionError(f"the proxy says {status}")


def _refuse_own(address: str) -> None:
    if _is_own(address):
        raise Refused(f"{address} is this machine's own")


def _is_own(address: str) -> bool:
    """Is it an address of this machine, of its link, or of many?"""
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast or _is_ours(str(ip))


def _means_this_machine(name: str) -> bool:
    plain = name.rstrip(".").lower()
    if plain in ("localhost", socket.gethostname().lower()) or plain.endswith(".localhost"):
        return True
    return any(map(_is_own, _known_here(name)))


@functools.lru_cache(maxsize=1024)
def _known_here(name: str) -> tuple[str, ...]:
    """The name's addresses as this machine knows them: at once, or not at all.

    Behind a proxy, the name servers may be out of reach, and each question take seconds.
    """
    found: list[str] = []

    def ask() -> None:
        try:
            found.extend(str(address[0]) for *_, address in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            return  # only the proxy knows it

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_KNOWN_WITHIN_S)
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
    """As the kernel lists its routes: destination 0 with mask (or prefix length) 0, and not through loopback."""
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
