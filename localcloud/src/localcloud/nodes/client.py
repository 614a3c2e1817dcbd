"""NodeRunner: the API process's client to boot, kill and reach nodes. All methods are thread-safe."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from localcloud.network.netlink import Rtnetlink
from localcloud.network.records import Dns
from localcloud.nodes import kernel, packet_filter, user_data, wire
from localcloud.nodes.machine import (
    BRIDGE,
    DNS_ADDRESS,
    DNS_PORT,
    USER_ADDRESS,
    WAY_OUT_PORTS,
    Machine,
    NodeError,
    NodeState,
)

# A boot takes 20 ms; this is for machines that are very busy, and longer than the supervisor's own limits.
_ANSWER_TIMEOUT_S = 120.0
_BACKLOG = 512
_SEND_TIMEOUT_S = 10


class NodeRunner:
    """A client of the supervisor.

    A VPC's network is created when `listen` or `boot` first names it. `on_exit(instance_id)` is called in a thread of
    its own when a node has ended without being killed.
    """

    def __init__(self, channel: socket.socket, gateway: socket.socket | None = None) -> None:
        self.on_exit: Callable[[str], None] = _ignore
        self._channel = channel
        # All threads share the channel: a supervisor that hangs must not block them all for ever.
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wire.timeval(_SEND_TIMEOUT_S))
        self._gateway = gateway
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[tuple[dict[str, Any], list[int]]]] = {}
        self._next = 0
        self._netns: dict[str, int] = {}
        threading.Thread(target=self._read, name="supervisor", daemon=True).start()

    def boot(self, machine: Machine) -> None:
        """Start the machine in its VPC's network, with the disk of one that has ended, and return when its init runs.

        sshd and the user data then start by themselves. Raises NodeError, with the reason, if the node did not start.
        """
        if not machine.image:
            machine = replace(machine, scripts=user_data.scripts(machine.user_data, machine.administrator))
        self._tell_names(machine)
        self._ask("boot", machine=machine.to_json())

    def _tell_names(self, machine: Machine) -> None:
        """Let the name server answer this node with the addresses of its file systems."""
        if self._gateway is not None:
            places = {name: re.split("[+@]", place)[0] for name, place in machine.file_systems.items()}
            kinds = {name: "fsx" if "@" in place else "efs" for name, place in machine.file_systems.items()}
            names = {f"{name}.{kinds[name]}.{machine.domain}": address for name, address in places.items()}
            node = {"vpc": machine.vpc_id, "address": machine.address}
            wire.send(self._gateway, {**node, "kind": "names", "names": names})

    def resolve(self, vpc_id: str, dns: Dns) -> None:
        """Have a VPC's name server answer as its DNS attributes say."""
        if self._gateway is not None:
            wire.send(self._gateway, {"vpc": vpc_id, "kind": "dns", "dns": asdict(dns)})

    def kill(self, instance_id: str, silent: bool = False) -> None:
        """Kill the node and remove its link and directories; no error if it is gone.

        With `silent` its peers notice nothing, as when an instance is lost. Otherwise their connections are closed.
        """
        self._ask("kill", instance_id=instance_id, silent=silent)

    def reboot(self, instance_id: str) -> None:
        """Restart the node's machine, with the same disk and addresses, and return at once.

        Nothing happens if it does not run. `on_exit` is called if it can't start again.
        """
        self._ask("reboot", instance_id=instance_id)

    def stop(self, instance_id: str) -> None:
        """Shut the node's machine down, and return when it has ended; its disk stays until `kill`, for another `boot`.

        Nothing happens if it does not run.
        """
        self._ask("stop", instance_id=instance_id)

    def partition(self, instance_id: str, cut: bool) -> None:
        """Drop all packets from and to the node (cut), or pass them again."""
        self._ask("partition", instance_id=instance_id, cut=cut)

    def stall(self, instance_id: str, stalled: bool) -> None:
        """Stop all of the node's processes, as if it thrashed, or continue them. Its ports still accept connections."""
        self.signal(instance_id, signal.SIGSTOP if stalled else signal.SIGCONT)

    def signal(self, instance_id: str, number: int, pattern: str = "") -> None:
        """Send a signal to all of the node's processes, or to those whose command line matches a pattern."""
        self._ask("signal", instance_id=instance_id, number=int(number), pattern=pattern)

    def freeze(self, instance_id: str, for_s: float) -> None:
        """Let a node's shared directories answer nothing for this long; 0 lets them answer again."""
        self._ask("freeze", instance_id=instance_id, for_s=for_s)

    def shape(self, instance_id: str, rate_bit_s: int, delay_s: float) -> None:
        """Limit what the node's link carries each way (0: no limit), and delay what the node sends; also after reboots.

        Raises NodeError where the kernel can't, and then changes nothing.
        """
        self._ask("shape", instance_id=instance_id, rate_bit_s=rate_bit_s, delay_s=delay_s)

    def give_way_out(self, instance_id: str) -> None:
        """Let the node's packets leave its VPC; no error if it is gone, or has a way out."""
        self._ask("give_way_out", instance_id=instance_id)

    def remove_vpc(self, vpc_id: str) -> None:
        """Kill the VPC's nodes and remove its network; no error if it is gone.

        The caller must close sockets from `listen`.
        """
        fd = self._netns.pop(vpc_id, None)
        if fd is not None:
            os.close(fd)
        self._ask("remove_vpc", vpc_id=vpc_id)

    def listen(self, vpc_id: str, address: str, port: int) -> socket.socket:
        """Return a listening TCP socket in the VPC's network."""
        with self._inside(vpc_id):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # The way out listens on some of these ports at all addresses; a specific address takes precedence.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
        return listener

    def filter(self, vpc_id: str, ruleset: str) -> None:
        """Replace the packet filter of the VPC's network. Raises CannotFilter, and then changes nothing."""
        with self._inside(vpc_id):
            packet_filter.load(ruleset)

    def add_address(self, vpc_id: str, address: str) -> None:
        """Have the VPC's router answer at this address, too."""
        with self._links(vpc_id) as links:
            links.add_address(BRIDGE, address, 32)

    def remove_address(self, vpc_id: str, address: str) -> None:
        with self._links(vpc_id) as links:
            links.remove_address(BRIDGE, address, 32)

    def open_way_out(self, vpc_id: str) -> None:
        """Let the VPC's nodes reach the outside, on the ports of the web and of git, and resolve names for them."""
        if self._gateway is None:
            return
        with self._inside(vpc_id):
            names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        names.bind((DNS_ADDRESS, DNS_PORT))
        self._hand_over(vpc_id, "udp", names)
        for port in WAY_OUT_PORTS:
            self._hand_over(vpc_id, "tcp", self.listen(vpc_id, "0.0.0.0", port))

    def _hand_over(self, vpc_id: str, kind: str, listener: socket.socket) -> None:
        assert self._gateway is not None
        wire.send(self._gateway, {"vpc": vpc_id, "kind": kind}, (listener.fileno(),))
        listener.close()

    def close_way_out(self, vpc_id: str) -> None:
        """Close the VPC's way out, if it has one."""
        if self._gateway is not None:
            wire.send(self._gateway, {"vpc": vpc_id, "kind": "close"})

    def connect(self, vpc_id: str, address: str, port: int, timeout_s: float) -> socket.socket:
        """Return a connected blocking TCP socket in the VPC's network. Raises OSError as connect() does."""
        with self._inside(vpc_id):
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        return _connected(connection, (USER_ADDRESS, 0), (address, port), timeout_s)

    def connect_inside(self, instance_id: str, port: int, timeout_s: float) -> socket.socket:
        """Return a socket that is connected to a port of a node from that node itself. Raises OSError."""
        pid = next((node.inner_pid for node in self.nodes() if node.instance_id == instance_id and node.alive), 0)
        with open(f"/proc/{pid or 'none'}/ns/net") as network, self._in(network.fileno()):
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        return _connected(connection, ("127.0.0.1", 0), ("127.0.0.1", port), timeout_s)

    def nodes(self) -> list[NodeState]:
        """Return the nodes that were booted and not yet killed, in boot order."""
        answer, _fds = self._ask("nodes")
        return [NodeState(**{**state, "console": Path(state["console"])}) for state in answer["nodes"]]

    def _inside(self, vpc_id: str) -> AbstractContextManager[None]:
        """Move this thread into the VPC's network; a socket stays in the network in which it was created."""
        return self._in(self._network(vpc_id))

    @contextmanager
    def _in(self, network: int) -> Iterator[None]:
        kernel.setns(network, kernel.CLONE_NEWNET)
        try:
            yield
        finally:
            kernel.setns(self._home, kernel.CLONE_NEWNET)

    @contextmanager
    def _links(self, vpc_id: str) -> Iterator[Rtnetlink]:
        with self._inside(vpc_id):
            links = Rtnetlink()
        try:
            yield links
        finally:
            links.close()

    def _network(self, vpc_id: str) -> int:
        fd = self._netns.get(vpc_id)
        if fd is None:
            _answer, fds = self._ask("netns", vpc_id=vpc_id)
            fd = self._netns.setdefault(vpc_id, fds[0])
            if fd != fds[0]:
                os.close(fds[0])
        return fd

    def _ask(self, call: str, **arguments: Any) -> tuple[dict[str, Any], list[int]]:
        future: Future[tuple[dict[str, Any], list[int]]] = Future()
        with self._lock:
            self._next += 1
            number = self._next
            self._waiting[number] = future
            try:
                wire.send(self._channel, {"id": number, "call": call, **arguments})
            except OSError as problem:
                del self._waiting[number]
                raise NodeError(f"{call}: the supervisor accepts no requests: {problem}") from problem
        try:
            answer, fds = future.result(_ANSWER_TIMEOUT_S)
        except FutureTimeout:
            raise NodeError(f"{call}: no answer from the supervisor in {_ANSWER_TIMEOUT_S:.0f} s") from None
        finally:
            self._waiting.pop(number, None)
        if "error" in answer:
            raise NodeError(answer["error"])
        return answer, fds

    def _read(self) -> None:
        while (received := wire.receive(self._channel)) is not None:
            message, fds = received
            if "exit" in message:
                threading.Thread(target=self.on_exit, args=(message["exit"],), daemon=True).start()
            elif (future := self._waiting.pop(message["id"], None)) is not None:
                future.set_result((message, fds))
            else:
                # too late: the caller has stopped waiting, so nothing else would close these
                for fd in fds:
                    os.close(fd)
        for future in list(self._waiting.values()):
            future.set_exception(NodeError("the supervisor is gone"))


def _connected(
    connection: socket.socket, source: tuple[str, int], target: tuple[str, int], timeout_s: float
) -> socket.socket:
    """Connect a socket, and return it; close it if that fails."""
    try:
        connection.settimeout(timeout_s)
        connection.bind(source)
        connection.connect(target)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        connection.close()
        raise
    return connection


def _ignore(_identity: str) -> None:
    """Do nothing: the default of `on_exit`."""
