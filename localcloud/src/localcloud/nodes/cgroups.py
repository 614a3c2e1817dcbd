"""Control groups: limit the memory and processes of each node, if a cgroup v2 subtree is delegated to us.

DELEGATED/                  systemd's Delegate=yes, or the root of all groups
├── localcloud-outside/        processes that ran in DELEGATED: a group that limits others can't have processes itself
└── localcloud-PID/            all nodes of the local cloud whose daemon is PID
    └── INSTANCE/           one node's limits
        └── node/           its processes; the root of its cgroup namespace, so the limits are out of its reach
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from localcloud.nodes import kernel, limits, volumes
from localcloud.nodes.machine import Machine, Site
from localcloud.nodes.userns import user_name
from localcloud.storage import trees

_CONTROLLERS = ("memory", "pids")
_OUTSIDE = "localcloud-outside"
_MIB = 1 << 20
# The part of the memory for all nodes, half of it for their volumes, which count as memory.
_ALL_NODES = 7 / 8
# Linux allows a machine twice as many processes as one of its accounts.
_PROCESSES_PER_MIB = 8
# systemd makes about 60.
_MOST_GROUPS = 4000
_SYSTEMD = Path("/run/systemd/system")
_SYSTEMCTL_TIMEOUT_S = 5
_MOVE_TIMEOUT_S = 2
_REMOVAL_TIMEOUT_S = 2


class NotDelegated(Exception):  # noqa: N818 - a state, not a fault
    """Nodes can't have control groups. The message has the reason and, if there is one, the command that changes it."""


def take() -> Path:
    """Create the group of all nodes; move the other processes of our group to another. Raises NotDelegated."""
    delegated = _delegated()
    try:
        _sweep(delegated)
        if not _is_root(delegated):
            _move_processes(delegated, delegated / _OUTSIDE)
        has_controllers = can_limit(delegated)
        if has_controllers:
            _control_children(delegated)
        nodes = delegated / f"localcloud-{os.getpid()}"
        nodes.mkdir()
        if has_controllers:
            _limit_all(nodes)
    except OSError as problem:
        raise NotDelegated(f"{problem.filename or delegated}: {problem.strerror}") from problem
    return nodes


def can_limit(group: Path) -> bool:
    """Whether the group has the controllers of memory and processes. Some machines have them only in cgroup v1."""
    return set(_CONTROLLERS) <= set(_controllers(group))


def _limit_all(nodes: Path) -> None:
    _set(nodes, "memory.max", int(limits.most_memory_bytes() * _ALL_NODES))
    _set(nodes, "pids.max", limits.most_processes())
    _control_children(nodes)


def give_back(nodes: Path) -> None:
    """Remove the group that `take` created, after the last node has ended."""
    deadline = time.monotonic() + _REMOVAL_TIMEOUT_S
    while not _remove(nodes) and time.monotonic() < deadline:
        time.sleep(0.02)


def make(site: Site, machine: Machine) -> None:
    """Create the group of a node, if it has one. Raises OSError."""
    group = _group(site, machine)
    if group is None:
        return
    # A machine that restarts: its last systemd has left groups.
    _remove(group / "node")
    (group / "node").mkdir(parents=True, exist_ok=True)
    if can_limit(group.parent):
        _set(group, "pids.max", machine.memory_mib * _PROCESSES_PER_MIB)
        # As on EC2. Kernels without swap lack the file.
        with suppress(FileNotFoundError):
            _set(group, "memory.swap.max", 0)
        _control_children(group)
    if machine.image:
        _give(group, site.root)


def _give(group: Path, owner: int) -> None:
    """Let the node's systemd make groups below its own, as many as a machine needs; its limits stay out of reach."""
    _set(group, "cgroup.max.descendants", _MOST_GROUPS)
    for name in (".", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"):
        os.chown(group / "node" / name, owner, owner)


def limit_memory(site: Site, machine: Machine) -> None:
    """Limit a node to its type's memory plus the size of its disk, which is memory too."""
    group = _group(site, machine)
    if group is not None and can_limit(group.parent):
        disk_bytes = volumes.size_bytes(site.disk(machine.instance_id))
        _set(group, "memory.max", machine.memory_mib * _MIB + disk_bytes)


def enter(site: Site, machine: Machine) -> None:
    """Move this process into the group of its node."""
    group = _group(site, machine)
    if group is not None:
        _set(group / "node", "cgroup.procs", 0)


def show(site: Site, machine: Machine) -> None:
    """Mount the node's own group at sys/fs/cgroup: only systemd may change it. Runs in the node's namespaces."""
    if _group(site, machine) is not None:
        access = 0 if machine.image else kernel.MS_RDONLY
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC | access
        kernel.mount("cgroup2", "sys/fs/cgroup", "cgroup2", flags)


def remove(site: Site, instance_id: str) -> None:
    """Remove a node's group. A group that is still in use is removed with the local cloud."""
    if site.cgroup is not None:
        _remove(site.cgroup / instance_id)


def _group(site: Site, machine: Machine) -> Path | None:
    """The group of a node. It has one if groups can be limited, or if its systemd needs one."""
    if site.cgroup is None or not (machine.image or can_limit(site.cgroup)):
        return None
    return site.cgroup / machine.instance_id


def _delegated() -> Path:
    group = _own_group()
    if group is not None and group.name == _OUTSIDE:
        group = group.parent
    if group is None or not _is_delegated(group):
        raise NotDelegated(_advice(group))
    return group


def _own_group() -> Path | None:
    """Return the directory of this process's cgroup; None if cgroup v2 is not mounted."""
    mounts = [fields[4] for fields in kernel.mounts() if fields[fields.index("-", 6) + 1] == "cgroup2"]
    own = [line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::/")]
    return Path(mounts[0] + own[0].removeprefix("0::")) if mounts and own else None


def _controllers(group: Path) -> list[str]:
    try:
        return (group / "cgroup.controllers").read_text().split()
    except OSError:  # below the root of a container's namespace, say
        return []


def _is_root(group: Path) -> bool:
    return not (group / "cgroup.type").exists()


def _is_delegated(group: Path) -> bool:
    if not _SYSTEMD.is_dir():
        # Processes of the root group may stay there. Otherwise the group must have been created for this user.
        return os.geteuid() == 0 if _is_root(group) else os.geteuid() == group.stat().st_uid != 0
    command = ["systemctl", *_user_manager(), "show", "--property=Delegate", "--value", group.name]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=_SYSTEMCTL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return shown.stdout.strip() == "yes"


def _user_manager() -> list[str]:
    return [] if os.geteuid() == 0 else ["--user"]


def _advice(own_group: Path | None) -> str:
    if _SYSTEMD.is_dir():
        command = " ".join(["systemd-run", *_user_manager(), "--scope -p Delegate=yes localcloud serve"])
        return f"no cgroup is delegated. To change that, stop the local cloud, then start it with:\n{command}"
    if own_group is None:
        return "this machine has no cgroup v2."
    group, user = own_group / f"localcloud-{user_name()}", user_name()
    files = " ".join(f"{group}/{name}" for name in ("cgroup.procs", "cgroup.threads", "cgroup.subtree_control"))
    command = f"sudo sh -c 'mkdir -p {group} && chown {user} {group} {files} && echo $0 >{group}/cgroup.procs' $$"
    return f"no cgroup is delegated. To change that, stop the local cloud, then run this in the shell:\n{command}"


def _move_processes(source: Path, target: Path) -> None:
    """Move all processes, including those that they start meanwhile. Raises OSError."""
    target.mkdir(exist_ok=True)
    deadline = time.monotonic() + _MOVE_TIMEOUT_S
    while (pids := (source / "cgroup.procs").read_text().split()) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                _set(target, "cgroup.procs", pid)


def _control_children(group: Path) -> None:
    _set(group, "cgroup.subtree_control", " ".join(f"+{name}" for name in _CONTROLLERS))


def _sweep(delegated: Path) -> None:
    """Remove the groups of local clouds that were killed."""
    for group in delegated.glob("localcloud-*"):
        pid = group.name.partition("-")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            _remove(group)


def _remove(group: Path) -> bool:
    """Remove a group and the groups in it; return whether it is gone. The kernel refuses while it has processes."""
    return trees.remove(group)


def _set(group: Path, name: str, value: int | str) -> None:
    (group / name).write_text(str(value))
