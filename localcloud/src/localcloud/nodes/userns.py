"""Fork into a new user namespace with the uid map of a mode: range (real accounts), single (one uid) or root (none)."""

from __future__ import annotations

import os
import pwd
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path

from localcloud.nodes import kernel

MODES = ("range", "single", "root")
# Where root runs the local cloud: the kernel's root must not be root of a node as well. Nothing gives these ids to
# accounts or containers (systemd's "Users, Groups, UIDs and GIDs on systemd Systems"), and Linux 6.1's devpts takes
# no gid above 2^31. They are always the same ones, not those of /etc/subuid, because the files of a kept shared
# directory have them.
_NODES_ROOT = 0x70000000
_NODES_IDS = 1 << 16
_NOBODY = 65534
_HELPER_TIMEOUT_S = 5


class NamespaceError(Exception):
    """A step of creating namespaces failed: its name, the errno (0: none) and the message."""

    def __init__(self, step: str, code: int, detail: str) -> None:
        super().__init__(f"{step}: {detail}")
        self.step = step
        self.code = code
        self.detail = detail


def spawn(mode: str, main: Callable[[], int]) -> int:
    """Run `main` as root of a new user namespace in a child that dies with this process; return its pid.

    Raises NamespaceError if the namespace or its map can't be made. `main`'s result is the exit status.
    """
    result_r, result_w = os.pipe()
    start_r, start_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(result_r)
        os.close(start_w)
        _child(mode, main, result_w, start_r)
    os.close(result_w)
    os.close(start_r)
    try:
        _lead(mode, pid, result_r)
        os.write(start_w, b"g")
    except BaseException:
        os.close(start_w)
        os.waitpid(pid, 0)
        raise
    os.close(start_w)
    return pid


def exit_status(status: int) -> int:
    """Convert a wait status as shells do: 128 + the signal's number if a signal ended the process."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _lead(mode: str, pid: int, result_r: int) -> None:
    """Do the parent's part: wait for the child's new namespace, then write its maps."""
    with os.fdopen(result_r, "rb") as result:
        code = int(result.read() or b"-1")
    if code:
        raise NamespaceError("unshare", code, os.strerror(code))
    if mode == "single":
        _write_single_map(pid)
    elif mode == "range":
        _write_range_map(pid)


def _child(mode: str, main: Callable[[], int], result_w: int, start_r: int) -> None:
    """Do the child's part. Never returns."""
    status = 1
    try:
        _enter(mode, result_w)
        if os.read(start_r, 1):
            os.close(start_r)
            _become_root(mode)
            status = main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _enter(mode: str, result_w: int) -> None:
    code = 0
    try:
        if mode != "root":
            kernel.unshare(kernel.CLONE_NEWUSER)
    except OSError as problem:
        code = problem.errno or 1
    os.write(result_w, str(code).encode())
    os.close(result_w)


def _become_root(mode: str) -> None:
    if mode != "root":
        os.setresgid(0, 0, 0)
        if mode == "range":
            os.setgroups([])
        os.setresuid(0, 0, 0)
    kernel.die_with_parent()


def _write_single_map(pid: int) -> None:
    _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/gid_map", f"0 {os.getgid()} 1\n")
    _write(f"/proc/{pid}/uid_map", f"0 {os.getuid()} 1\n")


def _write_range_map(pid: int) -> None:
    if os.geteuid() == 0:
        map_ids(pid)
        return
    name = user_name()
    _run_helper("newgidmap", pid, os.getgid(), *subordinate_range(Path("/etc/subgid"), name, os.getuid()))
    _run_helper("newuidmap", pid, os.getuid(), *subordinate_range(Path("/etc/subuid"), name, os.getuid()))


def root_of_nodes(mode: str) -> int:
    """Return the uid and gid that a node's root has in the local cloud's user namespace.

    This is 0, the user that runs it, unless that user is root. In a container with few ids it is 0 for root, too.
    """
    shifted = mode == "range" and os.geteuid() == 0 and _has_ids(_NODES_ROOT, _NODES_IDS)
    return _NODES_ROOT if shifted else 0


def plain_id(number: int) -> int:
    """Return the uid or gid inside a node for `number` outside; nobody's if nodes have no such id."""
    return number - _NODES_ROOT if _NODES_ROOT <= number < _NODES_ROOT + _NODES_IDS else min(number, _NOBODY)


def no_nodes_id(root: int) -> int:
    """Return a uid and gid that is ours and no node's; the nodes' root where we have no such id."""
    return 0 if root or not _has_ids(_NODES_IDS, 1) else _NODES_IDS


def map_ids(pid: int, root: int | None = None) -> None:
    """Map all our ids unchanged into the new user namespace of `pid`; with `root`, the nodes' ids, starting there.

    Requires root's capabilities in our own user namespace.
    """
    for name in ("gid_map", "uid_map"):
        own = Path(f"/proc/self/{name}").read_text()
        most = None if root is None else _NODES_IDS
        _write(f"/proc/{pid}/{name}", f"0 {root} {_NODES_IDS}\n" if root else identity_map(own, most))


def _has_ids(first_id: int, number: int) -> bool:
    """Whether our maps of uids and of gids each have all these ids."""
    return all(_has(Path(f"/proc/self/{name}"), first_id, number) for name in ("gid_map", "uid_map"))


def _has(own_map: Path, first_id: int, number: int) -> bool:
    extents = (line.split() for line in own_map.read_text().splitlines())
    ours = [(int(first), int(first) + int(count)) for first, _outside, count in extents]
    return any(first <= first_id and end >= first_id + number for first, end in ours)


def user_name() -> str:
    """Return our account's name, or the uid as text if it has no account."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def identity_map(own_map: str, most: int | None = None) -> str:
    """Return a map of each of our ids below `most` to itself (in a container, they may be fewer than 2^32)."""
    extents = [(int(first), int(count)) for first, _outside, count in map(str.split, own_map.splitlines())]
    if most is not None:
        extents = [(first, min(count, most - first)) for first, count in extents if first < most]
    return "".join(f"{first} {first} {count}\n" for first, count in extents)


def subordinate_range(file: Path, name: str, uid: int) -> tuple[int, int]:
    """Return (first id, count) of this user's first line with 65,536 ids or more in /etc/subuid or /etc/subgid."""
    try:
        lines = [line.strip().split(":") for line in file.read_text().splitlines()]
    except OSError as problem:
        raise NamespaceError("subordinate ids", problem.errno or 0, f"{file}: {problem.strerror}") from problem
    for line in lines:
        if len(line) == 3 and line[0] in (name, str(uid)) and int(line[2]) >= 65536:
            return int(line[1]), int(line[2])
    raise NamespaceError("subordinate ids", 0, f"{file} has no line with 65536 ids for {name}")


def _run_helper(helper: str, pid: int, own: int, first: int, count: int) -> None:
    argv = [helper, str(pid), "0", str(own), "1", "1", str(first), str(count)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_HELPER_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise NamespaceError(helper, getattr(problem, "errno", 0) or 0, str(problem)) from problem
    if done.returncode:
        raise NamespaceError(helper, 0, done.stderr.strip() or f"exit status {done.returncode}")


def _write(path: str, text: str) -> None:
    """Write the text in one write(2), as the kernel requires for a map."""
    try:
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as problem:
        raise NamespaceError(Path(path).name, problem.errno or 0, problem.strerror or "") from problem
