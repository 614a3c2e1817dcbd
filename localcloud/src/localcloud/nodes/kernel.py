"""Linux system calls that Python does not wrap: namespaces, mounts, parent-death signals, a seccomp filter."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from typing import Union

StrPath = Union[str, "os.PathLike[str]"]

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

_MNT_DETACH = 2
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_SECBIT_NO_SETUID_FIXUP = 1 << 2

_X86 = platform.machine() in ("x86_64", "AMD64")
_NR_PIVOT_ROOT = 155 if _X86 else 41
_NR_MOUNT_SETATTR = 442
# setgroups, chown, fchown, lchown, fchownat; aarch64 has no chown and lchown
_IDENTITY_CALLS = (116, 92, 93, 94, 260) if _X86 else (159, 55, 54)
_AUDIT_ARCH = 0xC000003E if _X86 else 0xC00000B7

# Loaded at the first call, so that the module can be imported (and the probe can report) on other systems.
_libc: ctypes.CDLL | None = None


def _c() -> ctypes.CDLL:
    global _libc
    if _libc is None:
        _libc = ctypes.CDLL(None, use_errno=True)
    return _libc


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result


def unshare(flags: int) -> None:
    _check(_c().unshare(ctypes.c_int(flags)), f"unshare {flags:#x}")


def setns(fd: int, kind: int) -> None:
    """Move the calling thread into the namespace `fd` of this kind (CLONE_NEW…)."""
    _check(_c().setns(ctypes.c_int(fd), ctypes.c_int(kind)), f"setns {kind:#x}")


def mount(
    source: StrPath | None, target: StrPath, kind: str | None = None, flags: int = 0, data: str | None = None
) -> None:
    done = _c().mount(_bytes(source), _bytes(target), _bytes(kind), ctypes.c_ulong(flags), _bytes(data))
    _check(done, f"mount {kind or 'bind'} on {target}")


def bind(source: StrPath, target: StrPath, read_only: bool = False) -> None:
    """Bind `source` and everything mounted below it."""
    mount(source, target, None, MS_BIND | MS_REC)
    if read_only:
        make_read_only(target)


def make_read_only(target: StrPath) -> None:
    """Make the mount at `target` and every one below it read-only (Linux 5.12)."""
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    done = _c().syscall(
        ctypes.c_long(_NR_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(_AT_RECURSIVE),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    _check(done, f"mount_setattr {target}")


def pivot_root(new_root: StrPath) -> None:
    """Make `new_root` (a mount) the root of this mount namespace and detach the old root."""
    os.chdir(new_root)
    _check(_c().syscall(ctypes.c_long(_NR_PIVOT_ROOT), b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def unmount(target: StrPath) -> None:
    """Detach what is mounted at `target` from this mount namespace at once, even while it is in use."""
    _check(_c().umount2(os.fsencode(target), ctypes.c_int(_MNT_DETACH)), f"umount {target}")


def mounts(pid: int | str = "self") -> list[list[str]]:
    """Return the fields of each mount in /proc/PID/mountinfo.

    A mount's name may contain what Python takes for the end of a line, or for a space.
    """
    with open(f"/proc/{pid}/mountinfo", "rb") as table:
        return [os.fsdecode(line).rstrip("\n").split(" ") for line in table]


def sethostname(name: str) -> None:
    raw = name.encode()
    _check(_c().sethostname(raw, ctypes.c_size_t(len(raw))), "sethostname")


def die_with_parent() -> None:
    """Have this process killed when its parent ends. Call it after the last change of uid, which would clear it."""
    _check(_c().prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0), "prctl(PDEATHSIG)")


def gain_no_privileges() -> None:
    """Let no program that this process or its children execute have more rights than they have, setuid or not."""
    _check(_c().prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0), "prctl(NO_NEW_PRIVS)")


def change_owner(number: int) -> None:
    """Change to this uid and gid, and keep all capabilities until a program is executed (capabilities(7))."""
    done = _c().prctl(_PR_SET_SECUREBITS, ctypes.c_ulong(_SECBIT_NO_SETUID_FIXUP), 0, 0, 0)
    _check(done, "prctl(SECUREBITS)")
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)
    # Otherwise the local cloud's other processes could not open this one's files in /proc.
    _check(_c().prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(1), 0, 0, 0), "prctl(DUMPABLE)")


def ignore_identity_calls() -> None:
    """Let setgroups and chown succeed without doing anything, here and in all children.

    A user namespace with one uid denies setgroups(), on which sshd's privilege separation insists. Every file
    has the same owner there anyway.
    """
    program = _seccomp_program(_IDENTITY_CALLS)
    code = ctypes.create_string_buffer(program)
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    done = _c().prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(header), 0, 0)
    _check(done, "prctl(SECCOMP)")


def _seccomp_program(calls: tuple[int, ...]) -> bytes:
    """Assemble the BPF filter: foreign architecture → allow; one of `calls` → return 0 to the caller; else allow."""
    load, jump_equal, ret = 0x20, 0x15, 0x06
    allow, succeed = 0x7FFF0000, 0x00050000

    def step(code: int, yes: int, no: int, value: int) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    steps = [step(load, 0, 0, 4), step(jump_equal, 1, 0, _AUDIT_ARCH), step(ret, 0, 0, allow), step(load, 0, 0, 0)]
    steps += [step(jump_equal, len(calls) - i, 0, number) for i, number in enumerate(calls)]
    return b"".join([*steps, step(ret, 0, 0, allow), step(ret, 0, 0, succeed)])


def _bytes(text: StrPath | None) -> bytes | None:
    return None if text is None else os.fsencode(text)
