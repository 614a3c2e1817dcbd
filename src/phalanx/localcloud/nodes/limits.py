"""What a node may take of this machine besides its volumes: processes and System V's shared memory.

Linux counts the processes of a user namespace against the one above, too (since 5.14): all nodes together leave
half of what this machine allows, and one account of one node has a share of that. A job may make no user namespace, or
it would mount a tmpfs of any size in it; Ubuntu's images refuse that too. Root on the node may allow it again
(user.max_user_namespaces).
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

from phalanx.localcloud.nodes.machine import Machine

_SYSCTL = Path("/proc/sys")
_MIB = 1 << 20
# Linux lets an account have one process, or thread, for each 256 KiB of a machine's memory.
_PROCESSES_PER_MIB = 4
# Of what all nodes may have, for one account of one node.
_PART = 4


def not_limited(mode: str, is_kernels_root: bool) -> tuple[str, ...]:
    """What a person who runs a local cloud in this mode must know of its nodes, whose root may be the kernel's."""
    if mode == "root":
        return ("In mode root, root on a node is root of this machine, and may have any number of processes.",)
    if is_kernels_root:
        return (
            "Root on a node has the number of this machine's root, who may change the kernel's settings.\n"
            "Run phalanx as an ordinary user, unless you trust whoever is root on a node.",
        )
    return ()


def limit_all_nodes() -> None:
    """Before the user namespace of a node is made, with which the limit goes."""
    _limit_processes(most_processes())


def limit_node(machine: Machine) -> None:
    """As process 1, in namespaces of its own."""
    of_all_nodes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    _limit_processes(min(machine.memory_mib * _PROCESSES_PER_MIB, of_all_nodes // _PART))
    _set("user/max_user_namespaces", 0)
    # As /dev/shm. On older kernels only the machine's own root may set it.
    with suppress(OSError):
        _set("kernel/shmall", machine.memory_mib * _MIB // 2 // os.sysconf("SC_PAGE_SIZE"))


def most_processes() -> int:
    """For all nodes: half of what this process's limit, the kernel and its numbers allow."""
    own, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    kernel = [int((_SYSCTL / "kernel" / name).read_text()) for name in ("threads-max", "pid_max")]
    return min(kernel + ([own] if own != resource.RLIM_INFINITY else [])) // 2


def _limit_processes(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def _set(name: str, value: int) -> None:
    (_SYSCTL / name).write_text(str(value))
