"""Let processes of nodes reach the limits of their control groups in a real kernel; print as JSON what stopped them.

It is process 1 of user-mode Linux, which has this machine's files.
"""

from __future__ import annotations

import errno
import os
import signal
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from user_mode_linux import tell

from localcloud.nodes import cgroups, kernel
from localcloud.nodes.machine import Machine, Site

MEMORY_MIB, DISK_MIB, CROWD_MIB = 48, 16, 16
_MIB = 1 << 20
_GROUPS = Path("/sys/fs/cgroup")
_HUNGRY = Machine("i-1", "vpc-1", "10.0.0.0/16", "10.0.1.4", "ip", "t3.nano", 1, MEMORY_MIB, b"", "d", "a", {})
_CROWD = replace(_HUNGRY, instance_id="i-2", memory_mib=CROWD_MIB)
_NEIGHBOUR = replace(_HUNGRY, instance_id="i-3")

Say = Callable[[object], object]


def _observe() -> dict[str, Any]:
    for kind, path in (("proc", "/proc"), ("sysfs", "/sys"), ("cgroup2", _GROUPS)):
        kernel.mount(kind, path, kind)
    # /run/systemd/system, which may be this machine's, would say that systemd delegates groups.
    for path in ("/run", "/tmp"):
        kernel.mount("tmpfs", path, "tmpfs")
    groups = cgroups.take()
    with tempfile.TemporaryDirectory() as state:
        seen = _reach_limits(Site(Path(state), "root", (), (), cgroup=groups))
    cgroups.give_back(groups)
    return {**seen, "left": [path.name for path in _GROUPS.glob("localcloud-*")]}


def _reach_limits(site: Site) -> dict[str, Any]:
    disk = site.disk(_HUNGRY.instance_id)
    disk.mkdir(parents=True)
    kernel.mount("tmpfs", disk, "tmpfs", 0, f"size={DISK_MIB}m")
    for machine in (_HUNGRY, _CROWD, _NEIGHBOUR):
        cgroups.make(site, machine)
    cgroups.limit_memory(site, _HUNGRY)
    neighbour = _in_node(site, _NEIGHBOUR, signal.pause)
    taken, ended_by = _said(site, _HUNGRY, lambda say: _take_memory(disk, say))
    crowd, _ = _said(site, _CROWD, _start_processes)
    root, _ = _said(site, _HUNGRY, lambda say: _lift_the_limits(site, say))
    seen = {
        "taken_mib": int(taken[-1]),
        "was_killed": ended_by == signal.SIGKILL,
        "events": (_GROUPS / f"localcloud-{os.getpid()}/{_HUNGRY.instance_id}/memory.events").read_text(),
        "processes": crowd,
        "neighbour_lives": os.waitpid(neighbour, os.WNOHANG)[0] == 0,
        "lifted_by_root": dict(line.split("=") for line in root),
    }
    os.kill(neighbour, signal.SIGKILL)
    os.waitpid(neighbour, 0)
    kernel.unmount(disk)
    for machine in (_HUNGRY, _CROWD, _NEIGHBOUR):
        cgroups.remove(site, machine.instance_id)
    return seen


def _said(site: Site, machine: Machine, act: Callable[[Say], object]) -> tuple[list[str], int]:
    """Return the lines that a process of the node wrote, and the signal that ended it."""
    ours, theirs = os.pipe()
    pid = _in_node(site, machine, lambda: act(lambda word: os.write(theirs, f"{word}\n".encode())))
    os.close(theirs)
    with os.fdopen(ours) as said:
        lines = said.read().splitlines()
    return lines, os.WTERMSIG(os.waitpid(pid, 0)[1])


def _in_node(site: Site, machine: Machine, act: Callable[[], object]) -> int:
    """Start `act` in a process of the node; return its pid."""
    if pid := os.fork():
        return pid
    try:
        cgroups.enter(site, machine)
        act()
    finally:
        os._exit(0)


def _take_memory(disk: Path, say: Say) -> None:
    """Fill half of the disk, then take memory; say before each MiB how many there are."""
    (disk / "file").write_bytes(bytes(DISK_MIB * _MIB // 2))
    held = []
    for mib in range(DISK_MIB // 2, 2 * MEMORY_MIB):
        say(mib)
        held.append(b"x" * _MIB)


def _start_processes(say: Say) -> None:
    """Start processes until one is refused; say how many there are then, this one included."""
    pids = []
    try:
        while len(pids) < 16 * CROWD_MIB:
            pid = os.fork()
            if not pid:
                signal.pause()
            pids.append(pid)
    except OSError as problem:
        say(errno.errorcode[problem.errno or 0])
    say(len(pids) + 1)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _lift_the_limits(site: Site, say: Say) -> None:
    """Write to what the node sees as the groups of the machine; say why each of that is refused."""
    kernel.unshare(kernel.CLONE_NEWCGROUP | kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_PRIVATE | kernel.MS_REC)
    shown = site.state / "sys/fs/cgroup"
    shown.mkdir(parents=True)
    os.chdir(site.state)
    cgroups.show(site, _HUNGRY)
    kernel.unmount(_GROUPS)
    for name in ("memory.max", "pids.max"):
        say(f"{name}={_refusal(shown / name)}")


def _refusal(limit: Path) -> str:
    try:
        limit.write_text("max")
    except OSError as problem:
        return errno.errorcode[problem.errno or 0]
    return "none"


if __name__ == "__main__":
    tell(_observe)
