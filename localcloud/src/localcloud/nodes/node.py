"""What the supervisor knows about a node."""

from __future__ import annotations

from dataclasses import dataclass, field

from localcloud.nodes.console import Console
from localcloud.nodes.machine import Machine

# EC2 resets an instance that has not shut down in "a few minutes"; our own init has little to shut down. systemd gives
# a service 90 s to end.
_SHUTDOWN_TIMEOUT_S = 10.0
_SYSTEMD_SHUTDOWN_TIMEOUT_S = 100.0


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
    frozen_by: set[int] = field(default_factory=set)
    """The pids of the processes that let its shared directories answer nothing."""

    @property
    def pids(self) -> dict[str, int]:
        """Its process 1, as the host and as the local cloud's own processes see it (machine.NodeState)."""
        return {"pid": self.host_pid, "inner_pid": self.pid}

    @property
    def shutdown_timeout_s(self) -> float:
        return _SYSTEMD_SHUTDOWN_TIMEOUT_S if self.machine.image else _SHUTDOWN_TIMEOUT_S
