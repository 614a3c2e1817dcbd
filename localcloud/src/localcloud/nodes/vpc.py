"""A VPC: a network namespace with a bridge that connects its nodes. Two VPCs may use the same addresses."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from localcloud.network import netlink
from localcloud.network.netlink import Discipline, Peer, Rtnetlink
from localcloud.nodes import kernel
from localcloud.nodes.machine import (
    API_ADDRESS,
    BRIDGE,
    DNS_ADDRESS,
    IMDS_ADDRESS,
    USER_ADDRESS,
    Machine,
    mac_of,
)

# instances of a VPC may send frames of this size (EC2 user guide, network MTU)
_MTU = 9001
# The namespace is the router between nodes. It does not tell them that they could reach each other directly.
_IPV4 = Path("/proc/sys/net/ipv4")
_ROUTER = {"ip_forward": "1", "conf/all/send_redirects": "0", "conf/default/send_redirects": "0"}


class Vpc:
    """A VPC of the single-threaded supervisor. The namespace lives as long as `netns` is open."""

    def __init__(self) -> None:
        with _new_netns() as self.netns:
            self._links = Rtnetlink()
            for name, value in _ROUTER.items():
                (_IPV4 / name).write_text(value)
        self._gateways: set[str] = set()
        self._links.set_up("lo")
        self._links.add_local_default_route()
        self._links.add_bridge(BRIDGE, mac_of(API_ADDRESS), _MTU)
        for address in (IMDS_ADDRESS, API_ADDRESS, DNS_ADDRESS, USER_ADDRESS):
            self._links.add_address(BRIDGE, address, 32)
        self._links.set_up(BRIDGE)
        self._bridge = self._links.index(BRIDGE)

    def serve(self, cidr: str) -> None:
        """Act as the router of this block, unless it already does."""
        network = ipaddress.ip_network(cidr)
        gateway = _gateway(network)
        if gateway not in self._gateways:
            self._links.add_address(BRIDGE, gateway, network.prefixlen)
            self._gateways.add(gateway)

    def unplug(self, link: str) -> None:
        """Disconnect the node. Neither side is notified."""
        self._links.set_master(link, 0)

    def plug(self, link: str) -> None:
        self._links.set_master(link, self._bridge)

    def shape(self, link: str, machine: Machine, pid: int) -> None:
        """Change the link of a node that runs to what `machine` says. `pid` is in the node."""
        # First at the node, which alone has the delay: a kernel that can't delay packets then changes nothing.
        with _at_home_afterwards():
            with open(f"/proc/{pid}/ns/net") as netns:
                kernel.setns(netns.fileno(), kernel.CLONE_NEWNET)
            node = Rtnetlink()
        try:
            _shape(node, "eth0", netlink.discipline(machine.rate_bit_s, machine.delay_s))
        finally:
            node.close()
        _shape(self._links, link, netlink.discipline(machine.rate_bit_s, 0.0))

    def open_way_out(self, link: str) -> None:
        """Let a node that was connected without a way out send packets to addresses outside of its VPC."""
        self._links.pass_outbound(link)

    def connect(self, link: str, machine: Machine, pid: int) -> None:
        """Give the network namespace of `pid` an eth0 on the bridge. Runs in a child of the supervisor."""
        address = machine.address
        kernel.setns(self.netns, kernel.CLONE_NEWNET)
        bridge = Rtnetlink()
        node = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        bridge.add_veth(link, self._bridge, Peer("eth0", mac_of(address), node), _MTU)
        # As on EC2: a node is identified by its address, also by the metadata service.
        bridge.drop_other_senders(link, address, mac_of(address))
        if not machine.has_way_out:
            network = ipaddress.ip_network(machine.vpc_cidr)
            bridge.drop_outbound(link, str(network.network_address), network.prefixlen)
        _shape(bridge, link, netlink.discipline(machine.rate_bit_s, 0.0))
        # The kernel keeps 1,024 neighbours that it resolved, for all networks together. So nothing is resolved here:
        # the router knows each node, and nodes reach all others through the router. If they had to resolve each other,
        # a job that connects each rank with each would fail from 33 nodes on.
        bridge.add_neighbour(self._bridge, address, mac_of(address))
        bridge.close()
        os.close(node)

    def leave(self, link: str, address: str) -> None:
        """Disconnect a node that is gone, and forget its address, so that connections to it fail at once.

        A connection with unsent data keeps the node's network for minutes, which would answer in the place of the next.
        """
        for forget in (lambda: self.unplug(link), lambda: self._links.remove_neighbour(self._bridge, address)):
            with suppress(OSError):
                forget()

    def close(self) -> None:
        self._links.close()
        os.close(self.netns)


def _shape(links: Rtnetlink, name: str, discipline: Discipline | None) -> None:
    if discipline is None:
        links.remove_discipline(name)
    else:
        links.set_discipline(name, *discipline)


def configure(machine: Machine) -> None:
    """Bring eth0 up, in a node."""
    network = ipaddress.ip_network(machine.vpc_cidr)
    node = Rtnetlink()
    node.set_up("lo")
    # As in a VPC, only its own router may announce routes, and there is none for IPv6.
    with suppress(FileNotFoundError):
        Path("/proc/sys/net/ipv6/conf/eth0/accept_ra").write_text("0")
    node.add_address("eth0", machine.address, network.prefixlen, has_route=False)
    _shape(node, "eth0", netlink.discipline(machine.rate_bit_s, machine.delay_s))
    node.set_up("eth0")
    node.add_link_route("eth0", _gateway(network))
    node.add_default_route(_gateway(network))
    node.add_neighbour(node.index("eth0"), _gateway(network), mac_of(API_ADDRESS))
    node.close()


def _gateway(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> str:
    """Return the router's address: the first after the network's own, as on AWS."""
    return str(network.network_address + 1)


@contextmanager
def _new_netns() -> Iterator[int]:
    """Enter a new network namespace for the block; yield its fd, which stays open."""
    with _at_home_afterwards():
        kernel.unshare(kernel.CLONE_NEWNET)
        yield os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def _at_home_afterwards() -> Iterator[None]:
    """Return to the present network namespace after the block."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        kernel.setns(home, kernel.CLONE_NEWNET)
        os.close(home)
