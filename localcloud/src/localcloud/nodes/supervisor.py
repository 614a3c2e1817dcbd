"""Process 1 of the local cloud: fork nodes, manage their networks, report their ends. Single-threaded on purpose."""

from __future__ import annotations

import dataclasses
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from localcloud.nodes import cgroups, exports, frozen, init, kernel, operating_system, processes, programs, rootfs, wire
from localcloud.nodes.console import Console
from localcloud.nodes.machine import Machine, NodeError, Site
from localcloud.nodes.userns import exit_status
from localcloud.nodes.volumes import Pool
from localcloud.nodes.vpc import Vpc
from localcloud.storage import trees

_BOOT_TIMEOUT_S = 30.0
_IMAGE_TIMEOUT_S = 30.0
_SEND_TIMEOUT_S = 10
_MOST_STATUS_BYTES = 4096
# The parts of the memory for all disks and all /dev/shm: half in total, as Linux gives to one tmpfs.
_DISKS, _SHM = 3 / 8, 1 / 8
# EC2 resets an instance that has not shut down in "a few minutes"; our own init has little to shut down. systemd gives
# a service 90 s to end.
_SHUTDOWN_TIMEOUT_S = 10.0
_SYSTEMD_SHUTDOWN_TIMEOUT_S = 100.0


class Supervisor:
    """The event loop: requests of the API process, output of booting nodes, ends of processes."""

    def __init__(self, site: Site, channel: socket.socket, api: int, builder: int, host_proc: int) -> None:
        self._site = site
        self._channel = channel
        self._host_proc = host_proc
        self._disks = Pool(int(site.memory_bytes * _DISKS), "755", site.root)
        self._shm = Pool(int(site.memory_bytes * _SHM), "1777", site.root, kernel.MS_NOSUID | kernel.MS_NODEV)
        self._nodes: dict[str, Node] = {}
        self._vpcs: dict[str, Vpc] = {}
        self._leaving: dict[str, int] = {}
        self._links = self._limited = 0
        self._builder: int | None = builder
        self._api = api
        self._api_status: int | None = None
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        # a reader that hangs must not block us
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wire.timeval(_SEND_TIMEOUT_S))
        self._watch(channel.fileno(), self._take_request)
        self._watch(os.pidfd_open(api), self._end_of_api)

    def run(self) -> int:
        """Run until the API process ends, remove the nodes' disks, and return its exit status."""
        while self._api_status is None:
            for fd, _events in self._poll.poll(1000):
                if fd in self._handlers:
                    # Root on a node can read its own console, and so be faster than we are.
                    with suppress(BlockingIOError):
                        self._handlers[fd]()
            self._kill_overdue()
        for pool in (self._disks, self._shm):
            pool.close()
        return self._api_status

    def _watch(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def _unwatch(self, fd: int) -> None:
        """Stop watching an fd, and close it."""
        del self._handlers[fd]
        self._poll.unregister(fd)
        os.close(fd)

    def _end_of_api(self) -> None:
        self._api_status = exit_status(os.waitpid(self._api, 0)[1])

    def _take_request(self) -> None:
        received = wire.receive(self._channel)
        if received is None:
            # The API process has closed its end and is exiting; its pidfd shows when.
            self._handlers.pop(self._channel.fileno())
            self._poll.unregister(self._channel)
            return
        request, _fds = received
        try:
            getattr(self, f"_do_{request['call']}")(request)
        except (NodeError, OSError, ValueError) as problem:
            self._answer(request["id"], error=f"{request['call']}: {problem}")

    def _answer(self, number: int, fds: tuple[int, ...] = (), **content: Any) -> None:
        self._send({"id": number, **content}, fds)

    def _send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        try:
            wire.send(self._channel, message, fds)
        except OSError as problem:
            print(f"supervisor: the API process does not listen: {problem}", file=sys.stderr, flush=True)

    def _do_netns(self, request: dict[str, Any]) -> None:
        self._answer(request["id"], fds=(self._vpc(request["vpc_id"]).netns,))

    def _vpc(self, vpc_id: str) -> Vpc:
        if vpc_id not in self._vpcs:
            self._vpcs[vpc_id] = Vpc()
        return self._vpcs[vpc_id]

    def _do_boot(self, request: dict[str, Any]) -> None:
        machine = Machine.from_json(request["machine"])
        ended = self._nodes.get(machine.instance_id)
        if ended is not None and ended.alive:
            raise NodeError(f"{machine.instance_id} already exists")
        if machine.image:
            operating_system.require(self._site, machine)
        self._vpc(machine.vpc_id).serve(machine.vpc_cidr)
        self._wait_for_image()
        try:
            if ended is None:
                self._disks.mount(self._site.disk(machine.instance_id))
            else:
                trees.remove(self._site.disk(machine.instance_id) / rootfs.LOCAL_DISKS)
            exports.make(self._site, machine)
            self._start(machine, request["id"])
        except OSError:
            self._discard(machine.instance_id)
            raise

    def _start(self, machine: Machine, request: int | None) -> None:
        shm = self._site.shm(machine.instance_id)
        self._shm.unmount(shm)
        # Linux's default: half of the machine's memory
        self._shm.mount(shm, machine.memory_mib * (1 << 20) // 2)
        cgroups.make(self._site, machine)
        status_r, status_w = os.pipe()
        os.set_blocking(status_r, False)
        try:
            node = self._fork_node(machine, request, status_r, status_w)
        except OSError:
            os.close(status_r)
            raise
        finally:
            os.close(status_w)
        self._nodes[machine.instance_id] = node
        self._limit_memory(node)
        self._watch(status_r, lambda: self._read_status(node))

    def _do_reboot(self, request: dict[str, Any]) -> None:
        """Request a reboot, and answer at once; a node that is booting reboots after that."""
        node = self._nodes.get(request["instance_id"])
        if node is not None and node.alive and not node.reboots:
            node.reboots = True
            if node.deadline is None:
                self._shut_down(node)
        self._answer(request["id"])

    def _do_stop(self, request: dict[str, Any]) -> None:
        node = self._nodes.get(request["instance_id"])
        if node is None or not node.alive:
            self._answer(request["id"])
            return
        node.stoppers.append(request["id"])
        node.reboots = False
        node.deadline = time.monotonic() + node.shutdown_timeout_s
        os.kill(node.pid, operating_system.POWER_OFF if node.machine.image else programs.POWER_OFF)

    def _shut_down(self, node: Node) -> None:
        """Send Ctrl-Alt-Del, as EC2 presses the ACPI button."""
        node.deadline = time.monotonic() + node.shutdown_timeout_s
        os.kill(node.pid, signal.SIGINT)

    def _do_kill(self, request: dict[str, Any]) -> None:
        node = self._nodes.get(request["instance_id"])
        if node is None:
            self._answer(request["id"])
            return
        node.killers.append(request["id"])
        if request["silent"] and node.alive:
            self._vpcs[node.machine.vpc_id].unplug(node.link)
        self._kill(node)

    def _running(self, instance_id: str) -> Node:
        node = self._nodes.get(instance_id)
        if node is None or not node.alive:
            raise NodeError(f"{instance_id} does not run")
        return node

    def _do_shape(self, request: dict[str, Any]) -> None:
        node = self._running(request["instance_id"])
        shaped = dataclasses.replace(node.machine, rate_bit_s=request["rate_bit_s"], delay_s=request["delay_s"])
        self._vpcs[shaped.vpc_id].shape(node.link, shaped, node.pid)
        # For its reboots, too.
        node.machine = shaped
        self._answer(request["id"])

    def _do_partition(self, request: dict[str, Any]) -> None:
        node = self._running(request["instance_id"])
        vpc = self._vpcs[node.machine.vpc_id]
        (vpc.unplug if request["cut"] else vpc.plug)(node.link)
        self._answer(request["id"])

    def _do_signal(self, request: dict[str, Any]) -> None:
        node = self._running(request["instance_id"])
        processes.signal_all(node.pid, request["number"], request["pattern"])
        self._answer(request["id"])

    def _do_freeze(self, request: dict[str, Any]) -> None:
        node = self._running(request["instance_id"])
        for helper in node.frozen_by:
            os.kill(helper, signal.SIGTERM)
        if node.pidfd is not None and request["for_s"]:
            helper = frozen.freeze(self._site, node.pid, node.pidfd, request["for_s"])
            node.frozen_by.add(helper)
            self._watch(pidfd := os.pidfd_open(helper), lambda: self._end_of_helper(node, helper, pidfd))
        self._answer(request["id"])

    def _end_of_helper(self, node: Node, pid: int, pidfd: int) -> None:
        os.waitpid(pid, 0)
        node.frozen_by.remove(pid)
        self._unwatch(pidfd)

    def _do_give_way_out(self, request: dict[str, Any]) -> None:
        node = self._nodes.get(request["instance_id"])
        if node is not None and not node.machine.has_way_out:
            # For its reboots, too.
            node.machine = dataclasses.replace(node.machine, has_way_out=True)
            if node.alive:
                self._vpcs[node.machine.vpc_id].open_way_out(node.link)
        self._answer(request["id"])

    def _do_remove_vpc(self, request: dict[str, Any]) -> None:
        vpc_id = request["vpc_id"]
        self._leaving[vpc_id] = request["id"]
        for node in [node for node in self._nodes.values() if node.machine.vpc_id == vpc_id]:
            self._kill(node)
        self._finish_removal(vpc_id)

    def _finish_removal(self, vpc_id: str) -> None:
        """Close a VPC that is being removed, once its last node is gone."""
        if vpc_id in self._leaving and not any(node.machine.vpc_id == vpc_id for node in self._nodes.values()):
            if vpc := self._vpcs.pop(vpc_id, None):
                vpc.close()
            self._answer(self._leaving.pop(vpc_id))

    def _do_nodes(self, request: dict[str, Any]) -> None:
        self._answer(request["id"], nodes=[self._state(node) for node in self._nodes.values()])

    def _state(self, node: Node) -> dict[str, Any]:
        machine = node.machine
        return {
            "instance_id": machine.instance_id,
            "vpc_id": machine.vpc_id,
            "address": machine.address,
            "hostname": machine.hostname,
            **node.pids,
            "alive": node.alive,
            "console": str(self._site.console(machine.instance_id)),
            "rate_bit_s": machine.rate_bit_s,
            "delay_s": machine.delay_s,
        }

    # nodes

    def _wait_for_image(self) -> None:
        """Wait until the image is built: in practice it is, because it is built while the API process starts."""
        if self._builder is None:
            return
        deadline = time.monotonic() + _IMAGE_TIMEOUT_S
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self._builder, os.WNOHANG)
            if pid:
                self._builder = None
                if status:
                    raise NodeError("the machine image could not be built; the log shows the reason")
                return
            time.sleep(0.001)
        raise NodeError(f"the machine image was not built in {_IMAGE_TIMEOUT_S:.0f} s")

    def _fork_node(self, machine: Machine, request: int | None, status_r: int, status_w: int) -> Node:
        # a new name each time: the kernel takes some milliseconds to remove a dead node's link
        self._links += 1
        link = f"node{self._links}"
        vpc = self._vpcs[machine.vpc_id]
        console = self._open_console(machine)
        pid = os.fork()
        if pid == 0:
            init.run(self._site, machine, vpc, link, status_w, console)
        deadline = time.monotonic() + _BOOT_TIMEOUT_S
        return Node(
            machine=machine,
            pid=pid,
            status_fd=status_r,
            link=link,
            boot_request=request,
            deadline=deadline,
            console=console,
        )

    def _open_console(self, machine: Machine) -> Console:
        console = Console(self._site.console(machine.instance_id), self._site.root, has_terminal=bool(machine.image))
        self._watch(console.output, console.copy)
        return console

    def _host_pid(self, pidfd: int) -> int:
        """Return the process's pid on the host, from the host's /proc."""
        with open(os.open(f"self/fdinfo/{pidfd}", os.O_RDONLY, dir_fd=self._host_proc)) as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))

    def _read_status(self, node: Node) -> None:
        """Take what a booting node reports, up to READY or too many bytes: the rest of its life it has no reader.

        Root on the node can make a program of its own process 1, which writes for ever, or gives the pipe to another
        node's process. Only the first line, with the pid, is ours alone.
        """
        data = self._reported(node)
        if not data:
            self._stop_listening(node)
            if node.pidfd is None:
                self._node_ended(node)
        elif node.pidfd is None and (process_one := re.match(rb"(\d+)\n", node.output)):
            node.output = node.output[process_one.end() :]
            self._adopt(node, int(process_one[1]))
        if node.output == programs.READY and node.status_fd is not None:
            self._stop_listening(node)
            self._node_is_up(node)
        elif len(node.output) >= _MOST_STATUS_BYTES:
            self._stop_listening(node)

    def _reported(self, node: Node) -> bytes:
        """Read a piece of what a node reports, and add it to its output. Raises BlockingIOError if there is none."""
        data = os.read(node.status_fd, _MOST_STATUS_BYTES) if node.status_fd is not None else b""
        node.output += data
        return data

    def _adopt(self, node: Node, pid: int) -> None:
        """Take over the node's process 1: it becomes our child when the process that built the machine ends."""
        os.waitpid(node.pid, 0)
        node.pid, node.pidfd = pid, os.pidfd_open(pid)
        node.host_pid = self._host_pid(node.pidfd)
        self._watch(node.pidfd, lambda: self._node_ended(node))
        if node.killers or node.machine.vpc_id in self._leaving:
            self._kill(node)

    def _node_is_up(self, node: Node) -> None:
        node.deadline = None
        if node.boot_request is not None:
            self._answer(node.boot_request)
            node.boot_request = None
        if node.reboots:
            self._shut_down(node)

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for node in [node for node in self._nodes.values() if node.deadline is not None and node.deadline < now]:
            node.output = node.output or f"no answer in {_BOOT_TIMEOUT_S:.0f} s".encode()
            self._kill(node)

    def _kill(self, node: Node) -> None:
        if node.alive:
            os.kill(node.pid, 9)
        else:
            self._forget(node)

    def _node_ended(self, node: Node) -> None:
        # Its last output may still be in the pipe, of which another node's process may hold an end.
        with suppress(BlockingIOError):
            self._reported(node)
        self._stop_listening(node)
        status = self._reap(node)
        if node.killers or node.boot_request is not None or node.machine.vpc_id in self._leaving:
            self._forget(node)
        elif node.stoppers:
            self._answer_all(node.stoppers)
        elif not (node.reboots or status in programs.REBOOTS) or not self._restart(node):
            self._send({"exit": node.machine.instance_id})

    def _restart(self, node: Node) -> bool:
        """Start the same machine again with the same disk; return whether that worked."""
        try:
            self._start(node.machine, None)
        except OSError as problem:
            print(f"{node.machine.instance_id} can't start again: {problem}", file=sys.stderr, flush=True)
            return False
        return True

    def _reap(self, node: Node) -> int:
        """Return the node's exit status. All its processes are gone then; its link goes with its network namespace."""
        status = exit_status(os.waitpid(node.pid, 0)[1])
        node.alive, node.deadline = False, None
        self._vpcs[node.machine.vpc_id].leave(node.link, node.machine.address)
        if node.pidfd is not None:
            self._unwatch(node.pidfd)
        node.console.close()
        self._unwatch(node.console.output)
        return status

    def _stop_listening(self, node: Node) -> None:
        # the number of a closed fd is soon another node's
        if node.status_fd is not None:
            self._unwatch(node.status_fd)
            node.status_fd = None

    def _forget(self, node: Node) -> None:
        """Remove what is left of the node, and then answer the requests that wait for that."""
        self._stop_listening(node)
        self._nodes.pop(node.machine.instance_id, None)
        self._discard(node.machine.instance_id)
        if node.boot_request is not None:
            reason = node.output.decode(errors="replace").strip() or "it was killed while it booted"
            self._answer(node.boot_request, error=f"boot of {node.machine.instance_id}: {reason}")
            node.boot_request = None
        self._answer_all(node.stoppers)
        self._answer_all(node.killers)
        self._finish_removal(node.machine.vpc_id)

    def _answer_all(self, requests: list[int]) -> None:
        for number in requests:
            self._answer(number)
        requests.clear()

    def _discard(self, instance_id: str) -> None:
        """Remove the node's disk and directories."""
        self._disks.unmount(self._site.disk(instance_id))
        self._shm.unmount(self._site.shm(instance_id))
        trees.remove(self._site.node(instance_id))
        cgroups.remove(self._site, instance_id)
        self._limit_memory()

    def _limit_memory(self, *new: Node) -> None:
        """Set the limits of new nodes, or of all when their disks have changed in size."""
        before, self._limited = self._limited, self._disks.divisions
        for node in new if before == self._limited else self._nodes.values():
            cgroups.limit_memory(self._site, node.machine)


@dataclass
class Node:
    """A booted machine that has not been killed yet."""

    machine: Machine
    pid: int
    """The pid of its process 1 or, until there is a `pidfd`, of the process that builds the machine."""
    status_fd: int | None
    link: str
    console: Console
    boot_request: int | None
    deadline: float | None
    """When a boot, or a shutdown before a reboot, takes too long; None while the node runs."""
    host_pid: int = 0
    pidfd: int | None = None
    output: bytes = b""
    alive: bool = True
    reboots: bool = False
    """A reboot was requested: it is shutting down, or will once it is up."""
    killers: list[int] = field(default_factory=list)
    stoppers: list[int] = field(default_factory=list)
    frozen_by: set[int] = field(default_factory=set)
    """The pids of the processes that let its shared directories answer nothing."""

    @property
    def pids(self) -> dict[str, int]:
        """Its process 1, as the host and as the local cloud's own processes see it (machine.NodeState)."""
        return {"pid": self.host_pid, "inner_pid": self.pid}

    @property
    def shutdown_timeout_s(self) -> float:
        return _SYSTEMD_SHUTDOWN_TIMEOUT_S if self.machine.image else _SHUTDOWN_TIMEOUT_S
