"""How many nodes this machine has room for: what each takes of memory and the kernel's limits, and how to raise these.

Beyond these limits nodes fail in ways that name none of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

_NAMESPACES = ("user", "mnt", "pid", "net", "uts", "ipc", "cgroup")
_SETTINGS = (
    "kernel/pid_max",
    "kernel/threads-max",
    "kernel/pty/max",
    "fs/inotify/max_user_instances",
    *(f"user/max_{kind}_namespaces" for kind in _NAMESPACES),
)
_MEMORY = "meminfo"
# What a node takes at rest, measured with 65 plain nodes and with four of Ubuntu 24.04, whose disks are memory too.
_TASKS, _TASKS_FULL = 12, 25
_MIB, _MIB_FULL = 20, 560
_FILES, _INOTIFY_FULL = 3, 8
# What the local cloud takes itself.
_OWN_FILES = 64
_OWN_NAMESPACES = 8
# Of a bridge in Linux (BR_MAX_PORTS, of which the first is not used). A VPC's nodes are on one.
_PORTS = 1023
_FEWER = "Choose fewer nodes."
_GROUPS = Path("/sys/fs/cgroup")
_GROUP = "this process's control group"
# The files of a control group by their names in version 2, which has one mount, and their names below each mount.
_GROUP_FILES = {
    "": {name: name for name in ("memory.max", "memory.current", "memory.stat", "pids.max")},
    "memory": {
        "memory.max": "memory.limit_in_bytes",
        "memory.current": "memory.usage_in_bytes",
        "memory.stat": "memory.stat",
    },
    "pids": {"pids.max": "pids.max"},
}
# Version 1 shows a number near the largest in place of "max".
_NO_LIMIT = 1 << 60
_FEWER_IN_GROUP = "Choose fewer nodes, or raise the container's or the scope's limit."
_NPROC = "`ulimit -u` (processes)"
_PIDS = f"pids.max of {_GROUP}"
_PRLIMIT = "sudo prlimit --pid $$ --{0}={1}:{1}"


@dataclass(frozen=True)
class Nodes:
    """The nodes that the local cloud has. `starting` of them have not taken their memory yet."""

    plain: int = 0
    full: int = 0
    starting: int = 0
    in_vpc: int = 0


@dataclass(frozen=True)
class Limit:
    """What nodes may have of something, how much of it is in use, and what one more node takes.

    `fix` helps: advice, or the command that raises the limit, whose {} is the number that is needed. Nodes may have
    one part in `parts` of that number.
    """

    text: str
    most: int
    in_use: int
    each: int
    fix: str
    parts: int = 1


@dataclass(frozen=True)
class Shortage:
    """For how many more nodes there is room, which limit it is, and the command or the advice that helps."""

    nodes: int
    what: str
    fix: str


class Gauges:
    """The kernel's settings and counts.

    Their files stay open: in the local cloud's own namespaces the same paths show other values.
    """

    def __init__(self, proc: Path = Path("/proc"), groups: Path = _GROUPS) -> None:
        self._files: dict[str, int] = {}
        # Files, not directories: a descriptor of a directory would be a way out of a node that inherits it.
        self._groups = list(_own_groups(proc, groups))
        for name in (*_SETTINGS, _MEMORY):
            with suppress(OSError):
                self._files[name] = os.open(
                    proc / name if name == _MEMORY else proc / "sys" / name, os.O_RDONLY | os.O_CLOEXEC
                )

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])
        while self._groups:
            for file in self._groups.pop().values():
                os.close(file)

    def setting(self, name: str) -> int | None:
        """Return the present value of a setting; None where the kernel does not show it."""
        return int(self._read(name)) if name in self._files else None

    def memory_mib(self) -> tuple[int, int]:
        """Return this machine's memory, and how much of it is in use; (0, 0) where the kernel does not show it."""
        rows = (line.split() for line in self._read(_MEMORY).splitlines()) if _MEMORY in self._files else ()
        found = {row[0]: int(row[1]) >> 10 for row in rows}
        total = found.get("MemTotal:", 0)
        return total, total - found.get("MemAvailable:", total)

    def group_memory_mib(self) -> tuple[int, int]:
        """Return what the scarcest control group around this process may have of memory, and how much it has.

        The cache of files does not count: the kernel frees it. (0, 0) if no group is limited.
        """
        found = []
        for group in self._groups:
            most = _number(group, "memory.max")
            if most is not None:
                used = (_number(group, "memory.current") or 0) - _cache_of_files(group)
                found.append((most >> 20, max(0, used) >> 20))
        return min(found, key=lambda one: one[0] - one[1], default=(0, 0))

    def most_memory_mib(self) -> int:
        """Return how much memory this process and its children may have at most."""
        limits = (_number(group, "memory.max") for group in self._groups)
        return min([self.memory_mib()[0], *(most >> 20 for most in limits if most is not None)])

    def group_tasks(self) -> int | None:
        """Return the lowest limit of tasks of the control groups around this process; None if there is none."""
        found = (_number(group, "pids.max") for group in self._groups)
        return min((most for most in found if most is not None), default=None)

    def _read(self, name: str) -> str:
        return os.pread(self._files[name], 4096, 0).decode()


def _own_groups(proc: Path, mounted: Path) -> Iterator[dict[str, int]]:
    """Open the control groups that this process is in, from its own to the highest that it sees."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, own = line.split(":", 2)
        for mount, names in _GROUP_FILES.items():
            if mount in controllers.split(",") and ".." not in Path(own).parts:
                yield from (_open_group(group, names) for group in _upwards(mounted / mount, own))


def _upwards(mounted: Path, own: str) -> list[Path]:
    """Return a group and those above it. In a container, version 1 names a group by its path on the host."""
    group = mounted / own.lstrip("/")
    return [one for one in (group, *group.parents) if one.is_relative_to(mounted) and one.is_dir()]


def _open_group(group: Path, names: Mapping[str, str]) -> dict[str, int]:
    """Open what a control group has of limits and counts; the highest of a machine has none."""
    found: dict[str, int] = {}
    for name, file in names.items():
        with suppress(OSError):
            found[name] = os.open(group / file, os.O_RDONLY | os.O_CLOEXEC)
    return found


def _text(group: Mapping[str, int], name: str) -> str:
    """Return a file of a control group; "" where it has none, or where the group was removed."""
    try:
        return os.pread(group[name], 1 << 16, 0).decode()
    except (KeyError, OSError):
        return ""


def _number(group: Mapping[str, int], name: str) -> int | None:
    """Return a number of a control group; None where there is no limit."""
    text = _text(group, name).strip()
    return int(text) if text.isdecimal() and int(text) < _NO_LIMIT else None


def _cache_of_files(group: Mapping[str, int]) -> int:
    """Return the bytes of a group's cache of files. In version 1, those of the groups in it are in a total."""
    found = dict(line.split() for line in _text(group, "memory.stat").splitlines())
    return sum(int(found.get(f"total_{name}", found.get(name, 0))) for name in ("active_file", "inactive_file"))


def most_processes(gauges: Gauges) -> tuple[str, int]:
    """Return the lowest limit of tasks in all, and its name: the kernel's, its pids', or this process's own."""
    kernel = {name.replace("/", "."): gauges.setting(name) for name in ("kernel/pid_max", "kernel/threads-max")}
    own, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    known = {name: value for name, value in kernel.items() if value} | ({_NPROC: own} if own > 0 else {})
    in_group = gauges.group_tasks()
    known |= {_PIDS: in_group} if in_group else {}
    name = min(known, key=lambda one: known[one])
    return name, known[name]


def limits(gauges: Gauges, nodes: Nodes, is_full: bool) -> list[Limit]:
    """Return the limits of a machine with these nodes, for more of one kind."""
    total = nodes.plain + nodes.full
    found = [
        _tasks(gauges, nodes, is_full),
        _memory(gauges, nodes, is_full),
        _group_memory(gauges, nodes, is_full),
        Limit(f"a VPC's nodes share a bridge of Linux, with {_PORTS} ports", _PORTS, nodes.in_vpc, 1, _FEWER),
        _files(total),
        *(_setting(f"user/max_{kind}_namespaces", _OWN_NAMESPACES + total, 1, gauges) for kind in _NAMESPACES),
    ]
    if is_full:
        found.append(_setting("fs/inotify/max_user_instances", _INOTIFY_FULL * nodes.full, _INOTIFY_FULL, gauges))
        found.append(_setting("kernel/pty/max", nodes.full, 1, gauges))
    return [limit for limit in found if limit.most > 0]


def _tasks(gauges: Gauges, nodes: Nodes, is_full: bool) -> Limit:
    name, most = most_processes(gauges)
    fixes = {_NPROC: _PRLIMIT.format("nproc", "{0}"), _PIDS: _FEWER_IN_GROUP}
    command = fixes.get(name, f"sudo sysctl -w {name}={{0}}")
    taken = nodes.plain * _TASKS + nodes.full * _TASKS_FULL
    text = f"{name} is {most}, of which nodes may use half"
    return Limit(text, most // 2, taken, _TASKS_FULL if is_full else _TASKS, command, parts=2)


def _memory(gauges: Gauges, nodes: Nodes, is_full: bool) -> Limit:
    (most, used), each = gauges.memory_mib(), _MIB_FULL if is_full else _MIB
    return Limit(f"this machine has {most} MiB of memory", most, used + nodes.starting * each, each, _FEWER)


def _group_memory(gauges: Gauges, nodes: Nodes, is_full: bool) -> Limit:
    (most, used), each = gauges.group_memory_mib(), _MIB_FULL if is_full else _MIB
    return Limit(f"{_GROUP} may have {most} MiB of memory", most, used + nodes.starting * each, each, _FEWER_IN_GROUP)


def _files(nodes: int) -> Limit:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use, command = _OWN_FILES + _FILES * nodes, _PRLIMIT.format("nofile", "{0}")
    return Limit(f"`ulimit -Hn` (open files) is {most}", most, in_use, _FILES, command)


def _setting(name: str, in_use: int, each: int, gauges: Gauges) -> Limit:
    dotted, most = name.replace("/", "."), gauges.setting(name) or 0
    return Limit(f"{dotted} is {most}", most, in_use, each, f"sudo sysctl -w {dotted}={{0}}")


def shortages(found: Sequence[Limit], wanted: int) -> list[Shortage]:
    """Return what there is not enough of for this many more nodes, the scarcest first."""
    short = [limit for limit in found if limit.in_use + wanted * limit.each > limit.most]
    return sorted((_shortage(limit, wanted) for limit in short), key=lambda one: one.nodes)


def _shortage(limit: Limit, wanted: int) -> Shortage:
    take = "one more node takes" if wanted == 1 else f"{wanted} nodes take"
    needed = limit.in_use + wanted * limit.each
    return Shortage(
        nodes=max(0, limit.most - limit.in_use) // limit.each,
        what=f"{limit.text}: {limit.in_use} in use, and {take} {wanted * limit.each}",
        # The next power of two leaves some room for jobs.
        fix=limit.fix.format(1 << (limit.parts * needed).bit_length()),
    )


def main(arguments: Sequence[str]) -> int:
    """Print as JSON what there is not enough of for a new cluster."""
    parser = argparse.ArgumentParser(prog="python -m localcloud room")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--full", action="store_true", help="nodes with a full operating system")
    options = parser.parse_args(arguments)
    there = Nodes(plain=sum(1 for _ in options.state.glob("nodes/*")))
    with closing(Gauges()) as gauges:
        short = shortages(limits(gauges, there, options.full), options.nodes)
    sys.stdout.write(json.dumps([dataclasses.asdict(one) for one in short]) + "\n")
    return 0
