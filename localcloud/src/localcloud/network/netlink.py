"""A small rtnetlink client for the local cloud's bridges, links, addresses, routes, neighbours and queues."""

from __future__ import annotations

import errno
import os
import socket
import struct
from contextlib import suppress
from typing import NamedTuple

_NLMSG_ERROR = 2
_RTM_NEWLINK, _RTM_GETLINK, _RTM_NEWADDR, _RTM_DELADDR = 16, 18, 20, 21
_RTM_NEWROUTE, _RTM_NEWNEIGH, _RTM_DELNEIGH = 24, 28, 29
_REQUEST_ACK = 0x1 | 0x4
_CREATE_EXCLUSIVE = 0x400 | 0x200
_CREATE_OR_REPLACE = 0x400 | 0x100
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 1, 3, 4, 10, 18, 28
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS, _RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 2, 8, 1, 4, 5
_IFA_F_NOPREFIXROUTE = 0x200
_NDA_DST, _NDA_LLADDR, _NUD_PERMANENT = 1, 2, 0x80
_RTM_NEWQDISC, _RTM_DELQDISC, _RTM_NEWTFILTER, _RTM_DELTFILTER = 36, 37, 44, 45
_ROOT = 0xFFFFFFFF
_INGRESS_HANDLE, _INGRESS_PARENT, _ETH_P_ALL = 0xFFFF0000, 0xFFFFFFF1, 3
# The kernel runs the filter with the lower number first.
_OUTBOUND_PRIORITY, _SENDER_PRIORITY = 1, 2
_LINK_SERVICES = "169.254.169.0"
_TCA_KIND, _TCA_OPTIONS, _TCA_BPF_OPS_LEN, _TCA_BPF_OPS, _TCA_BPF_FLAGS, _BPF_DIRECT = 1, 2, 4, 5, 8, 1
_TC_ACT_OK, _TC_ACT_SHOT, _TC_ACT_UNSPEC = 0, 2, 0xFFFFFFFF
_IFF_UP = 1
_RT_TABLE_MAIN, _RTPROT_BOOT, _RTN_UNICAST, _RTN_LOCAL, _HOST, _LINK = 254, 3, 1, 2, 254, 253
_TIMEOUT_S = 10.0
# include/uapi/linux/pkt_sched.h
_TBF_PARMS, _TBF_BURST = 1, 6
_NETEM_RATE = 6
_ETHERNET = 1
# What may leave at once: more than one frame of 9,001 bytes, and what passes between two looks of a busy kernel.
_BURST_BYTES, _BURST_S = 16 * 1024, 0.002
# A packet waits at most this long for its turn; what would wait longer is dropped, as by a switch.
_QUEUE_S = 0.02
_DELAYED_PACKETS = 20_000
# The unit of the scheduler's times (PSCHED_SHIFT in include/net/pkt_sched.h): 64 ns
_TICKS_PER_S = 1e9 / 64


def attribute(kind: int, value: bytes | str | int) -> bytes:
    """Pack one netlink attribute: length, kind, value, padded to 4 bytes. A str ends in NUL, an int has 32 bits."""
    if isinstance(value, str):
        value = value.encode() + b"\0"
    elif isinstance(value, int):
        value = struct.pack("=I", value)
    length = 4 + len(value)
    return struct.pack("=HH", length, kind) + value + b"\0" * (-length % 4)


def message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags | _REQUEST_ACK, sequence, 0) + body


def _link(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    return struct.pack("=BxHiII", 0, 0, index, flags, change)


def _mac(address: str) -> bytes:
    return attribute(_IFLA_ADDRESS, bytes.fromhex(address.replace(":", "")))


def _address(index: int, address: str, prefix_length: int) -> bytes:
    raw = socket.inet_aton(address)
    head = struct.pack("=BBBBi", socket.AF_INET, prefix_length, 0, 0, index)
    return head + attribute(_IFA_LOCAL, raw) + attribute(_IFA_ADDRESS, raw)


def _neighbour(index: int, address: str) -> bytes:
    head = struct.pack("=BBHiHBB", socket.AF_INET, 0, 0, index, _NUD_PERMANENT, 0, 0)
    return head + attribute(_NDA_DST, socket.inet_aton(address))


def _sender_filter(address: str, mac: str) -> bytes:
    """Assemble the BPF filter: pass IPv4 and ARP from `address`, and IPv6, if they come from `mac`; drop the rest."""
    ip, hardware = int.from_bytes(socket.inet_aton(address), "big"), bytes.fromhex(mac.replace(":", ""))
    word, half, jump_equal, ret = 0x20, 0x28, 0x15, 0x06
    steps = [
        (word, 0, 0, 6),  # the frame's source: its first four bytes, then two
        (jump_equal, 0, 11, int.from_bytes(hardware[:4], "big")),
        (half, 0, 0, 10),
        (jump_equal, 0, 9, int.from_bytes(hardware[4:], "big")),
        (half, 0, 0, 12),  # the protocol
        (jump_equal, 2, 0, 0x0800),
        (jump_equal, 3, 0, 0x0806),
        (jump_equal, 4, 5, 0x86DD),
        (word, 0, 0, 26),  # IPv4's source
        (jump_equal, 2, 3, ip),
        (word, 0, 0, 28),  # ARP's sender
        (jump_equal, 0, 1, ip),
        (ret, 0, 0, _TC_ACT_OK),
        (ret, 0, 0, _TC_ACT_SHOT),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _outbound_filter(network: str, prefix_length: int) -> bytes:
    """Assemble the BPF filter: drop IPv4 to networks other than this one and 169.254.169.0/24; leave the rest open."""
    word, half, mask, jump_equal, ret = 0x20, 0x28, 0x54, 0x15, 0x06
    steps = [
        (half, 0, 0, 12),  # the protocol
        (jump_equal, 0, 6, 0x0800),
        (word, 0, 0, 30),  # IPv4's destination
        (mask, 0, 0, 0xFFFFFFFF << (32 - prefix_length) & 0xFFFFFFFF),
        (jump_equal, 3, 0, int.from_bytes(socket.inet_aton(network), "big")),
        (word, 0, 0, 30),
        (mask, 0, 0, 0xFFFFFF00),
        (jump_equal, 0, 1, int.from_bytes(socket.inet_aton(_LINK_SERVICES), "big")),
        (ret, 0, 0, _TC_ACT_UNSPEC),
        (ret, 0, 0, _TC_ACT_SHOT),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _filter(index: int, priority: int) -> bytes:
    """Name the ingress filter of this priority on the link with this index."""
    return struct.pack("=BxxxiIII", 0, index, 0, _INGRESS_HANDLE, priority << 16 | socket.htons(_ETH_P_ALL))


def _queue(index: int) -> bytes:
    """Name the queue of what leaves through the link with this index."""
    return struct.pack("=BxxxiIII", 0, index, 0, _ROOT, 0)


class Peer(NamedTuple):
    """The far end of a veth pair: its name, its hardware address and the descriptor of its network namespace."""

    name: str
    mac: str
    netns: int


class Rtnetlink:
    """Acts in the network namespace that its thread was in at its creation, even if the thread moves to another.

    All methods raise OSError with the kernel's errno, or TimeoutError after 10 s without an answer.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._socket.bind((0, 0))
        self._socket.settimeout(_TIMEOUT_S)
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def add_bridge(self, name: str, mac: str, mtu: int) -> None:
        """Add a bridge. Its `mac` is fixed: by default it is the lowest of its ports' and changes with them."""
        kind = attribute(_IFLA_LINKINFO, attribute(_IFLA_INFO_KIND, "bridge"))
        body = _link() + attribute(_IFLA_IFNAME, name) + attribute(_IFLA_MTU, mtu) + _mac(mac) + kind
        self._request(_RTM_NEWLINK, _CREATE_EXCLUSIVE, body)

    def add_veth(self, name: str, master: int, peer: Peer, mtu: int) -> None:
        """Add a veth pair: `name`, up, as a port of the bridge with index `master`; `peer`, down, in its namespace."""
        far = _link() + attribute(_IFLA_IFNAME, peer.name) + attribute(_IFLA_MTU, mtu)
        far += attribute(_IFLA_ADDRESS, bytes.fromhex(peer.mac.replace(":", ""))) + attribute(
            _IFLA_NET_NS_FD, peer.netns
        )
        pair = attribute(_IFLA_INFO_KIND, "veth") + attribute(_IFLA_INFO_DATA, attribute(_VETH_INFO_PEER, far))
        near = _link(0, _IFF_UP, _IFF_UP) + attribute(_IFLA_IFNAME, name) + attribute(_IFLA_MTU, mtu)
        near += attribute(_IFLA_MASTER, master) + attribute(_IFLA_LINKINFO, pair)
        self._request(_RTM_NEWLINK, _CREATE_EXCLUSIVE, near)

    def drop_other_senders(self, name: str, address: str, mac: str) -> None:
        """Drop what arrives at `name` from any other IPv4 or hardware address than these."""
        index = self.index(name)
        head = struct.pack("=BxxxiIII", 0, index, _INGRESS_HANDLE, _INGRESS_PARENT, 0)
        self._request(_RTM_NEWQDISC, _CREATE_EXCLUSIVE, head + attribute(_TCA_KIND, "ingress"))
        self._add_filter(index, _SENDER_PRIORITY, _sender_filter(address, mac))

    def drop_outbound(self, name: str, network: str, prefix_length: int) -> None:
        """Drop what arrives at `name` for IPv4 addresses outside of this network and of the link's own services."""
        self._add_filter(self.index(name), _OUTBOUND_PRIORITY, _outbound_filter(network, prefix_length))

    def pass_outbound(self, name: str) -> None:
        """Undo `drop_outbound`."""
        self._request(_RTM_DELTFILTER, 0, _filter(self.index(name), _OUTBOUND_PRIORITY))

    def set_discipline(self, name: str, kind: str, options: bytes) -> None:
        """Send what leaves through `name` by this queueing discipline, instead of the one before."""
        body = _queue(self.index(name)) + attribute(_TCA_KIND, kind) + attribute(_TCA_OPTIONS, options)
        try:
            self._request(_RTM_NEWQDISC, _CREATE_OR_REPLACE, body)
        except FileNotFoundError:
            raise OSError(errno.EOPNOTSUPP, f"this machine's kernel has no {kind} (its module sch_{kind})") from None

    def remove_discipline(self, name: str) -> None:
        """Undo `set_discipline`, if there is one."""
        # The kernel reports a link's own default, which can't be removed, as missing.
        with suppress(FileNotFoundError):
            self._request(_RTM_DELQDISC, 0, _queue(self.index(name)))

    def _add_filter(self, index: int, priority: int, program: bytes) -> None:
        options = attribute(_TCA_BPF_OPS_LEN, struct.pack("=H", len(program) // 8)) + attribute(_TCA_BPF_OPS, program)
        options += attribute(_TCA_BPF_FLAGS, _BPF_DIRECT)
        body = _filter(index, priority) + attribute(_TCA_KIND, "bpf") + attribute(_TCA_OPTIONS, options)
        self._request(_RTM_NEWTFILTER, _CREATE_EXCLUSIVE, body)

    def set_master(self, name: str, master: int) -> None:
        """Make `name` a port of the bridge with index `master`; 0 removes it and leaves its carrier on."""
        body = _link() + attribute(_IFLA_IFNAME, name) + attribute(_IFLA_MASTER, master)
        self._request(_RTM_NEWLINK, 0, body)

    def set_up(self, name: str) -> None:
        self._request(_RTM_NEWLINK, 0, _link(0, _IFF_UP, _IFF_UP) + attribute(_IFLA_IFNAME, name))

    def index(self, name: str) -> int:
        answers = self._request(_RTM_GETLINK, 0, _link() + attribute(_IFLA_IFNAME, name))
        return struct.unpack_from("=BxHi", answers[0])[2]

    def add_address(self, name: str, address: str, prefix_length: int, has_route: bool = True) -> None:
        """Add an address; without a route, its network is not reached through this link."""
        flags = b"" if has_route else attribute(_IFA_FLAGS, _IFA_F_NOPREFIXROUTE)
        self._request(_RTM_NEWADDR, _CREATE_EXCLUSIVE, _address(self.index(name), address, prefix_length) + flags)

    def remove_address(self, name: str, address: str, prefix_length: int) -> None:
        self._request(_RTM_DELADDR, 0, _address(self.index(name), address, prefix_length))

    def add_default_route(self, gateway: str) -> None:
        head = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, _RT_TABLE_MAIN, _RTPROT_BOOT, 0, _RTN_UNICAST, 0)
        body = head + attribute(_RTA_GATEWAY, socket.inet_aton(gateway))
        self._request(_RTM_NEWROUTE, _CREATE_EXCLUSIVE, body)

    def add_link_route(self, name: str, address: str) -> None:
        """Reach one address directly on a link."""
        head = struct.pack("=BBBBBBBBI", socket.AF_INET, 32, 0, 0, _RT_TABLE_MAIN, _RTPROT_BOOT, _LINK, _RTN_UNICAST, 0)
        body = head + attribute(_RTA_DST, socket.inet_aton(address)) + attribute(_RTA_OIF, self.index(name))
        self._request(_RTM_NEWROUTE, _CREATE_EXCLUSIVE, body)

    def add_local_default_route(self) -> None:
        """Treat every address without another route as local, so that packets to it are accepted here."""
        head = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, _RT_TABLE_MAIN, _RTPROT_BOOT, _HOST, _RTN_LOCAL, 0)
        self._request(_RTM_NEWROUTE, _CREATE_EXCLUSIVE, head + attribute(_RTA_OIF, self.index("lo")))

    def add_neighbour(self, index: int, address: str, mac: str) -> None:
        """Add a permanent neighbour: on the link with this index, `address` is at `mac`."""
        hardware = attribute(_NDA_LLADDR, bytes.fromhex(mac.replace(":", "")))
        self._request(_RTM_NEWNEIGH, _CREATE_OR_REPLACE, _neighbour(index, address) + hardware)

    def remove_neighbour(self, index: int, address: str) -> None:
        self._request(_RTM_DELNEIGH, 0, _neighbour(index, address))

    def _request(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        """Send a request and return the bodies of the messages before the acknowledgement."""
        self._sequence += 1
        self._socket.send(message(kind, flags, self._sequence, body))
        answers: list[bytes] = []
        while True:
            for answer_kind, sequence, answer in messages(self._socket.recv(65536)):
                if sequence != self._sequence:
                    continue
                if answer_kind == _NLMSG_ERROR:
                    _raise_for(answer)
                    return answers
                answers.append(answer)


def messages(data: bytes) -> list[tuple[int, int, bytes]]:
    """Split a datagram into messages: (kind, sequence, body)."""
    found: list[tuple[int, int, bytes]] = []
    while len(data) >= 16:
        length, kind, _flags, sequence, _port = struct.unpack_from("=IHHII", data)
        found.append((kind, sequence, data[16:length]))
        data = data[(length + 3) & ~3 :]
    return found


def _raise_for(answer: bytes) -> None:
    code = -struct.unpack_from("=i", answer)[0]
    if code:
        raise OSError(code, f"rtnetlink: {os.strerror(code)} ({errno.errorcode.get(code, code)})")


class Discipline(NamedTuple):
    """A queueing discipline: its name in the kernel, and its options, packed."""

    kind: str
    options: bytes


def discipline(rate_bit_s: int, delay_s: float) -> Discipline | None:
    """Return the discipline for this rate (0: no limit) and delay; None where neither is asked for."""
    if delay_s:
        return _delayed(rate_bit_s, delay_s)
    return _limited(rate_bit_s) if rate_bit_s else None


def _limited(rate_bit_s: int) -> Discipline:
    """Return a token bucket filter (tc-tbf(8)), for less than 2^32 bytes a second."""
    rate = rate_bit_s // 8
    burst = max(_BURST_BYTES, int(rate * _BURST_S))
    # struct tc_tbf_qopt: rate, peak rate, limit, buffer, mtu; `_TBF_BURST` has the buffer, in bytes.
    speed = struct.pack("=BBHhHI", 0, _ETHERNET, 0, 0, 0, rate)
    sizes = struct.pack("=III", burst + int(rate * _QUEUE_S), 0, 0)
    return Discipline("tbf", attribute(_TBF_PARMS, speed + bytes(len(speed)) + sizes) + attribute(_TBF_BURST, burst))


def _delayed(rate_bit_s: int, delay_s: float) -> Discipline:
    """Return a network emulator (tc-netem(8)), which limits the rate, too."""
    # struct tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter
    options = struct.pack("=6I", round(delay_s * _TICKS_PER_S), _DELAYED_PACKETS, 0, 0, 0, 0)
    if rate_bit_s:
        options += attribute(_NETEM_RATE, struct.pack("=IiIi", rate_bit_s // 8, 0, 0, 0))
    return Discipline("netem", options)
