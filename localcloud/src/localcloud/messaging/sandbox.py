"""Start a program with a root of its own, which has nothing of this machine but /usr and what it is given, read-only.

It is started as `python -I sandbox.py SOURCES SETTINGS`, with the directory of localcloud's sources and the JSON of
Settings, and ends as the program ends. What it may write is /tmp, in memory. Its user owns nothing elsewhere, has no
capabilities and can get none. It sees its own processes only, and all of them end with it.

sandbox       in the caller's process namespace: killing it ends the rest
└── process 1 builds the root, and waits
    └── program   in a user namespace of its own
"""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

# Of Lambda's execution environment: "Lambda quotas" in AWS's developer guide, and its user sbx_user1051.
PROCESSES = OPEN_FILES = 1024
TMP_MIB = 512
USER = 993
TASK, RUNTIME = "/var/task", "/var/runtime"
# A larger file would fill the disk, which has the program's output.
FILE_MIB = 64
_LIBRARIES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("ld.so.cache", "localtime", "alternatives", "ssl/certs", "ssl/openssl.cnf", "ca-certificates")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_MIB = 1 << 20


@dataclass(frozen=True)
class Settings:
    """`argv` starts in `task`, which is shown at TASK; the file `runtime` is shown in RUNTIME.

    `root` is an empty directory. `shown` are further directories, shown at their own paths. `first_id` is added to
    USER: the id of a node's root, where nodes have accounts of their own.
    """

    argv: list[str]
    root: str
    task: str
    runtime: str
    shown: list[str]
    first_id: int
    memory_mib: int


def main(settings: Settings) -> int:
    """Run the program; return its exit status as a shell says it."""
    _separate()
    pid = os.fork()
    if pid == 0:
        os._exit(_run_in(settings))
    return _status(os.waitpid(pid, 0)[1])


def _run_in(settings: Settings) -> int:
    """Be process 1: build the root, start the program in it and wait."""
    kernel.die_with_parent()
    _build(settings)
    kernel.pivot_root(settings.root)
    program = os.fork()
    if program == 0:
        try:
            _become(settings)
        finally:
            os._exit(126)
    while True:
        pid, status = os.wait()
        if pid == program:
            return _status(status)


def _separate() -> None:
    """Enter new namespaces; without the right to make them, in a user namespace of our own."""
    new = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    uid, gid = os.geteuid(), os.getegid()
    try:
        kernel.unshare(new)
    except PermissionError:
        kernel.unshare(new | kernel.CLONE_NEWUSER)
        _map(0, uid, gid)
    kernel.mount(None, "/", None, kernel.MS_PRIVATE | kernel.MS_REC)


def _build(settings: Settings) -> None:
    root, quiet = Path(settings.root), kernel.MS_NOSUID | kernel.MS_NODEV
    os.umask(0o022)
    kernel.mount("tmpfs", root, "tmpfs", quiet, "mode=755,size=1m")
    for name in _LIBRARIES:
        host = Path("/", name)
        if host.is_symlink():
            (root / name).symlink_to(host.readlink())
        elif host.is_dir():
            _show(root, host)
    shown = [Path(path) for path in ("/usr", *settings.shown)]
    in_tmp = [path for path in shown if path.is_relative_to("/tmp")]
    for path in shown:
        # One below another is there already.
        if path not in in_tmp and not (root / path.relative_to("/")).exists():
            _show(root, path)
    for path in (Path("/etc", name) for name in _ETC):
        if path.exists():
            _show(root, path)
    (root / "etc/passwd").write_text(f"sbx_user1051:x:{USER}:{USER}::/tmp:/bin/false\n")
    for name in _DEVICES:
        _show(root, Path("/dev", name))
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        (root / "dev" / name).symlink_to(f"/proc/self/fd{target}")
    _show(root, Path(settings.task), TASK)
    _show(root, Path(settings.runtime), f"{RUNTIME}/{Path(settings.runtime).name}")
    for name in ("proc", "tmp"):
        (root / name).mkdir()
    kernel.make_read_only(root)
    kernel.mount("proc", root / "proc", "proc", quiet | kernel.MS_NOEXEC)
    kernel.mount("tmpfs", root / "tmp", "tmpfs", quiet, f"mode=1777,size={TMP_MIB}m,nr_inodes=16384")
    for path in in_tmp:
        if not (root / path.relative_to("/")).exists():
            _show(root, path)
            kernel.make_read_only(root / path.relative_to("/"))


def _show(root: Path, path: Path, name: str = "") -> None:
    """Bind a file or a directory of this machine to the same path, or to another one."""
    here = root / (name or str(path)).lstrip("/")
    here.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        here.mkdir()
    else:
        here.touch()
    kernel.bind(path, here)


def _become(settings: Settings) -> None:
    """Become the program, as a user without any rights. Raises OSError."""
    os.setsid()
    os.chdir(TASK)
    if settings.first_id:
        os.setgroups([])
        kernel.change_owner(settings.first_id + USER)
    uid, gid = os.geteuid(), os.getegid()
    try:
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
    except OSError:
        _leave_root()
    else:
        _map(USER, uid, gid)
        # It could get capabilities in a user namespace below its own.
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
        # Where nodes have this machine's own ids, the user is root to the kernel.
        kernel.bind("/proc/sys", "/proc/sys", read_only=True)
    kernel.gain_no_privileges()
    limits = {
        resource.RLIMIT_NPROC: PROCESSES,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_FSIZE: FILE_MIB * _MIB,
        resource.RLIMIT_DATA: settings.memory_mib * _MIB,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))
    os.execv(settings.argv[0], settings.argv)


def _leave_root() -> None:
    """Become USER where the kernel gives us no user namespace, and nodes have none either. Raises OSError."""
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)


def _map(inside: int, uid: int, gid: int) -> None:
    """Map one id of this process's new user namespace to its own outside."""
    for name, text in (("setgroups", "deny"), ("gid_map", f"{inside} {gid} 1"), ("uid_map", f"{inside} {uid} 1")):
        Path("/proc/self", name).write_text(text)


def _status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

from localcloud.nodes import kernel  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(Settings(**json.loads(sys.argv[2]))))
