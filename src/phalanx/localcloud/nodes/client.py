"""NodeRunner: what the API process holds to boot, kill and reach nodes. Every method may be called from any thread."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.localcloud import kernel
from phalanx.localcloud.nodes import wire
from phalanx.localcloud.nodes.machine import (
    DNS_ADDRESS,
    DNS_PORT,
    USER_ADDRESS,
    WAY_OUT_PORTS,
    Machine,
    NodeError,
    NodeState,
)

# A boot takes 20 ms; this is for machines that are very busy, and longer than the supervisor's own limits.
_ANSWER_TIMEOUT_S = 60.0
_BACKLOG = 512
_SEND_TIMEOUT_S = 10


class NodeRunner:
    """Talks to the supervisor.

    A VPC's network is made when it is first named, by `listen` or `boot`. `on_exit(instance_id)` is called in a
    thread of its own when a node ended without having been killed.
    """

    def __init__(self, channel: socket.socket, gateway: socket.socket | None = None) -> None:
        self.on_exit: Callable[[str], None] = _ignore
        self._channel = channel
        # All threads ask through it: a supervisor that hangs must not hold the lock, and so all of them, for ever.
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wire.timeval(_SEND_TIMEOUT_S))
        self._gateway = gateway
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[tuple[dict[str, Any], list[int]]]] = {}
        self._next = 0
        self._netns: dict[str, int] = {}
        threading.Thread(target=self._read, name="supervisor", daemon=True).start()

    def boot(self, machine: Machine) -> None:
        """Start the machine in its VPC's network; returns when its init runs.

        sshd and the user data start by themselves then. Raises NodeError with the reason when the node did not start.
        """
        self._ask("boot", machine=machine.to_json())

    def kill(self, instance_id: str, silent: bool = False) -> None:
        """End the node at once and remove its link and directories; no error when it is gone.

        silent: its peers see nothing, as when an instance is lost; else their connections are closed.
        """
        self._ask("kill", instance_id=instance_id, silent=silent)

    def reboot(self, instance_id: str) -> None:
        """Start the node's machine again, with the same disk and addresses; returns at once.

        Nothing happens when it does not run. `on_exit` is told when it can't start again.
        """
        self._ask("reboot", instance_id=instance_id)

    def partition(self, instance_id: str, cut: bool) -> None:
        """Drop all that goes from and to the node (cut), or let it through again."""
        self._ask("partition", instance_id=instance_id, cut=cut)

    def remove_vpc(self, vpc_id: str) -> None:
        """Kill what is left in the VPC and remove its network; no error when it is gone.

        Sockets from `listen` are the caller's to close.
        """
        fd = self._netns.pop(vpc_id, None)
        if fd is not None:
            os.close(fd)
        self._ask("remove_vpc", vpc_id=vpc_id)

    def listen(self, vpc_id: str, address: str, port: int) -> socket.socket:
        """A listening TCP socket in the VPC's network."""
        with self._inside(vpc_id):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # The way out listens on some of the ports at all addresses; who names the address comes first.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
        return listener

    def open_way_out(self, vpc_id: str) -> None:
        """Let the VPC's nodes reach the outside, on the ports of the web and of git; names are resolved for them."""
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
        """Nothing happens when there is none."""
        if self._gateway is not None:
            wire.send(self._gateway, {"vpc": vpc_id, "kind": "close"})

    def connect(self, vpc_id: str, address: str, port: int, timeout_s: float) -> socket.socket:
        """A connected blocking TCP socket in the VPC's network. Raises OSError as connect() does."""
        with self._inside(vpc_id):
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.bind((USER_ADDRESS, 0))
            connection.connect((address, port))
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            connection.close()
            raise
        return connection

    def nodes(self) -> list[NodeState]:
        """Nodes booted and not yet killed, in boot order."""
        answer, _fds = self._ask("nodes")
        return [NodeState(**{**state, "console": Path(state["console"])}) for state in answer["nodes"]]

    @contextmanager
    def _inside(self, vpc_id: str) -> Iterator[None]:
        """Move this thread into the VPC's network; a socket stays in the one it was made in."""
        kernel.setns(self._network(vpc_id), kernel.CLONE_NEWNET)
        try:
            yield
        finally:
            kernel.setns(self._home, kernel.CLONE_NEWNET)

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
                raise NodeError(f"{call}: the supervisor takes no requests: {problem}") from problem
        try:
            answer, fds = future.result(_ANSWER_TIMEOUT_S)
        except FutureTimeout:
            raise NodeError(f"{call}: no answer of the supervisor in {_ANSWER_TIMEOUT_S:.0f} s") from None
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
                # too late: nobody waits any more, and nobody would close these
                for fd in fds:
                    os.close(fd)
        for future in list(self._waiting.values()):
            future.set_exception(NodeError("the supervisor is gone"))


def _ignore(_identity: str) -> None:
    """Nobody has asked to be told."""
