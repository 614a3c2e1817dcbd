"""Limit what a node uses of this machine besides its volumes: processes and System V shared memory.

Since 5.14, Linux also counts the processes of a user namespace against the one above. All nodes together leave half of
what this machine allows, and one account of one node has a share of the other half. A job can't create a user
namespace, in which it could mount a tmpfs of any size; Ubuntu's images refuse that too. Root on the node may allow it
again (user.max_user_namespaces).
"""

from __future__ import annotations

import os
import resource
from contextlib import closing, suppress
from pathlib import Path

from localcloud.daemon import room
from localcloud.daemon.room import Gauges
from localcloud.nodes.machine import Machine

_SYSCTL = Path("/proc/sys")
_MIB = 1 << 20
# Linux allows an account one process or thread for each 256 KiB of a machine's memory.
_PROCESSES_PER_MIB = 4
# One account of one node gets this fraction of what all nodes may have.
_PART = 4
_FILES = 1024


def not_limited(mode: str, is_kernels_root: bool) -> tuple[str, ...]:
    """Return warnings for the user of a local cloud in this mode: what root on a node may do to this machine."""
    if mode == "root":
        return ("In mode root, root on a node is root of this machine, and may have any number of processes.",)
    if is_kernels_root:
        return (
            "Root on a node has the uid of this machine's root, and may change the kernel's settings.\n"
            "Run it as an ordinary user, unless you trust everyone who is root on a node.",
        )
    return ()


def limit_node(machine: Machine) -> None:
    """Limit one node. Call this in its process 1, in its own namespaces."""
    of_all_nodes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limit_processes(min(machine.memory_mib * _PROCESSES_PER_MIB, of_all_nodes // _PART))
    _set("user/max_user_namespaces", 0)
    # The same as /dev/shm. On older kernels only the machine's own root may set it.
    with suppress(OSError):
        _set("kernel/shmall", machine.memory_mib * _MIB // 2 // os.sysconf("SC_PAGE_SIZE"))


def most_processes() -> int:
    """Return the limit for all nodes: half of what this process's limit, the kernel and its pids allow.

    Call this outside of the local cloud's namespaces: since Linux 6.14, they show a higher limit of pids than holds.
    """
    with closing(Gauges()) as gauges:
        return room.most_processes(gauges)[1] // 2


def most_memory_bytes() -> int:
    """Return the memory of this machine, or of the container or the scope around this process."""
    with closing(Gauges()) as gauges:
        return gauges.most_memory_mib() * _MIB


def allow_many_files() -> None:
    """Let this process, which has files for each node, open as many as its hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit_files() -> None:
    """Let a node's processes open as many files at first as systemd's services and sessions may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_FILES, hard), hard))


def limit_processes(most: int) -> None:
    """Limit the processes of what this starts: of all nodes before a user namespace, of one node in its process 1."""
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def _set(name: str, value: int) -> None:
    (_SYSCTL / name).write_text(str(value))
