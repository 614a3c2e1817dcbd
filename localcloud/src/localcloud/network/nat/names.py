"""The VPC's name server: resolves instances' names, and all others as this machine does, its hosts file included."""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
import threading
from typing import Any

from localcloud.api.admission import Peer
from localcloud.network.nat import routes
from localcloud.network.records import Dns

_A, _INTERNET = 1, 1
_NO_ERROR, _BAD_FORMAT, _FAILED, _NO_SUCH_NAME, _REFUSED = 0, 1, 2, 3, 5
_TTL_S = 60
_MAX_ADDRESSES = 20  # more would not fit into a datagram of 512 bytes
_HEADER = struct.Struct("!HHHHHH")
_RESPONSE, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x0100, 0x0080
# Names go to resolvers and into requests to a proxy, where other bytes (such as line ends) would have a meaning.
_LABEL = re.compile(rb"[A-Za-z0-9_-]+")
# The names of instances, which their addresses are part of: ip-10-0-1-12.ec2.internal, or REGION.compute.internal.
_INSTANCE = re.compile(r"ip-(\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3})\.(?:ec2|[a-z0-9-]+\.compute)\.internal")
# Every other name in their domains, in which nodes look for names without a dot, is nobody's.
_PRIVATE = (".ec2.internal", ".compute.internal")
# Of AWS's services. Here programs find them by AWS_ENDPOINT_URL: one that does not use it must not call the real AWS.
# S3's names, which lead to public data, are not among them.
_SERVICE = re.compile(
    r"(?:(?!s3[.-])[a-z0-9-]+\.{region}|{region}\.(?:queue|elasticmapreduce)|(?:.+\.)?vpce"
    r"|autoscaling|ec2|elasticmapreduce|iam|queue|sts)\.{domain}".format(
        region=r"(?:[a-z]+(?:-[a-z]+)+-\d+|global)",
        domain=r"(?:amazonaws\.com(?:\.cn)?|amazonaws\.eu|api\.aws|api\.amazonwebservices\.(?:com\.cn|eu))",
    )
)
# Half of RFC 2544's addresses for network tests, which no host has, stand for names that only this machine's proxy
# resolves. The other half are public addresses of nodes.
_STAND_INS = ipaddress.ip_network("198.18.0.0/16")
# The public name of an instance in another VPC, or in one without host names, stands for its public address.
_PUBLIC = re.compile(r"ec2-(198-19-\d{1,3}-\d{1,3})\.(?:compute-1|[a-z0-9-]+\.compute)\.amazonaws\.[a-z.]+")
# Of one node. Beyond that, its own oldest name loses its address: no address of another node's is given away.
_MOST_NAMES = 1000


class Names:
    """Answers queries: with the address that this machine finds, or with a stand-in for a name the proxy resolves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stand_ins: dict[Peer, dict[str, str]] = {}  # node → name → address
        self._names: dict[str, str] = {}  # address → name
        self._last = 0
        self._of_node: dict[Peer, dict[str, str]] = {}
        self._of_vpc: dict[str, Dns] = {}

    def tell(self, peer: Peer, names: dict[str, str]) -> None:
        """Let names have these addresses for a node, and no others that were told before."""
        self._of_node[peer] = names

    def learn(self, vpc: str, dns: dict[str, Any]) -> None:
        """Answer a VPC's nodes from now on as its DNS attributes say."""
        self._of_vpc[vpc] = Dns(**dns)

    def target_of(self, address: str) -> str:
        """Return the name that an address stands for, or the address itself."""
        return self._names.get(address, address)

    def __len__(self) -> int:
        """Return how many addresses stand for names."""
        return len(self._names)

    def forget(self, vpc: str) -> None:
        """Forget the names of a VPC's nodes, which are gone."""
        self._of_vpc.pop(vpc, None)
        for peer in [peer for peer in list(self._of_node) if peer[0] == vpc]:
            del self._of_node[peer]
        with self._lock:
            for peer in [peer for peer in self._stand_ins if peer[0] == vpc]:
                for address in self._stand_ins.pop(peer).values():
                    del self._names[address]

    def answer(self, query: bytes, peer: Peer = ("", "")) -> bytes:
        """Return the response to a node's DNS query, or b"" to anything else."""
        if len(query) < _HEADER.size:
            return b""
        number, flags, questions, *_ = _HEADER.unpack_from(query)
        if flags & _RESPONSE or questions != 1:
            return b""
        try:
            name, end = _name(query, _HEADER.size)
            kind, network = struct.unpack_from("!HH", query, end)
        except (IndexError, struct.error, ValueError):
            return _reply(number, flags, _BAD_FORMAT, b"", [])
        question = query[_HEADER.size : end + 4]
        if network != _INTERNET or name.endswith(".arpa"):
            return _reply(number, flags, _NO_SUCH_NAME, question, [])
        code, addresses = self._resolve(name, peer)
        # Nodes have no IPv6: a name that exists has no address of another kind.
        return _reply(number, flags, code, question, addresses if kind == _A else [])

    def _resolve(self, name: str, peer: Peer) -> tuple[int, list[str]]:
        plain, dns = name.lower(), self._of_vpc.get(peer[0], Dns())
        if not dns.is_on:
            return _REFUSED, []
        found = _INSTANCE.fullmatch(plain)
        address = dns.public.get(plain) or self._of_node.get(peer, {}).get(plain)
        if (found or address) and dns.has_host_names:
            return _of_instance(found[1].replace("-", ".")) if found else (_NO_ERROR, [str(address)])
        if public := _PUBLIC.fullmatch(plain):
            return _of_instance(public[1].replace("-", "."))
        if address or plain.endswith(_PRIVATE) or _SERVICE.fullmatch(plain):
            return _NO_SUCH_NAME, []
        if not routes.is_open():
            return _FAILED, []
        if routes.proxy_for(name):
            address = self._stand_in(name, peer)
            return (_NO_ERROR, [address]) if address else (_FAILED, [])
        try:
            found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
        except socket.gaierror as error:
            return (_FAILED if error.errno == socket.EAI_AGAIN else _NO_SUCH_NAME), []
        except (OSError, UnicodeError):
            return _FAILED, []
        return _NO_ERROR, [str(address[0]) for *_, address in found[:_MAX_ADDRESSES]]

    def _stand_in(self, name: str, peer: Peer) -> str:
        """Return a node's address for a name; "" when all are taken."""
        with self._lock:
            own = self._stand_ins.setdefault(peer, {})
            address = own.pop(name, "") or self._new_address(own, name)
            if address:
                own[name] = address
            return address

    def _new_address(self, own: dict[str, str], name: str) -> str:
        if len(own) >= _MOST_NAMES:
            del self._names[own.pop(next(iter(own)))]
        if len(self._names) >= _STAND_INS.num_addresses - 2:
            return ""
        while not self._last or str(_STAND_INS[self._last]) in self._names:
            self._last = (self._last + 1) % _STAND_INS.num_addresses
        address = str(_STAND_INS[self._last])
        # Those that were given back last are given away last.
        self._last = (self._last + 1) % _STAND_INS.num_addresses
        self._names[address] = name
        return address


def _of_instance(address: str) -> tuple[int, list[str]]:
    """Return the address in an instance's name, whose numbers may be no address."""
    try:
        return _NO_ERROR, [str(ipaddress.IPv4Address(address))]
    except ValueError:
        return _NO_SUCH_NAME, []


def _name(query: bytes, at: int) -> tuple[str, int]:
    """Return the name at this offset (never compressed in a question) and where it ends. Raises ValueError."""
    labels = []
    while query[at]:
        length = query[at]
        label = query[at + 1 : at + 1 + length]
        if not _LABEL.fullmatch(label):
            raise ValueError(f"{label!r} is not a label of a host name")
        labels.append(label.decode("ascii"))
        at += 1 + length
    return ".".join(labels), at + 1


def _reply(number: int, flags: int, code: int, question: bytes, addresses: list[str]) -> bytes:
    flags = _RESPONSE | _RECURSION_AVAILABLE | (flags & _RECURSION_DESIRED) | code
    head = _HEADER.pack(number, flags, 1 if question else 0, len(addresses), 0, 0)
    # Each answer begins with a pointer to the name in the question.
    fixed = struct.pack("!HHHIH", 0xC000 | _HEADER.size, _A, _INTERNET, _TTL_S, 4)
    return head + question + b"".join(fixed + socket.inet_aton(address) for address in addresses)
