"""Keep sshd open to everybody while a job connects to it again and again, and says nothing.

sshd refuses every login once it has as many unfinished ones as its limits of files and of logins allow. It limits them
for each address only since OpenSSH 8.5, and a job has all addresses of its own node's loopback device. So this ends the
oldest ones of an address that has too many, whatever sshd does.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import time
from typing import Dict, Iterator, List, Set, Tuple

from phalanx.node import files
from phalanx.node.proc_files import read

# sshd may open 1,024 files, where systemd starts it, and has one for each unfinished login.
_TOGETHER, _FROM_ONE, _FROM_ONE_OF_MANY = 800, 100, 10
# A part of its share, because sshd itself lets none have more.
_CROWDED = 0.8
_PID = "/run/sshd.pid"
_LOOK_EVERY_S = 1.0
_HERE = "this machine"


def share(sources: int) -> int:
    """Return how many logins each of this many addresses may leave unfinished at a node.

    It changes with each doubling only, because sshd has to read a new number again, and is away meanwhile.
    """
    doubled = 1 << max(0, sources - 1).bit_length()
    return max(_FROM_ONE_OF_MANY, min(_FROM_ONE, _TOGETHER // doubled))


def watch() -> None:
    """End what is too much, every second. Never returns."""
    while True:
        try:
            relieve()
        except (OSError, ValueError) as error:
            print(f"unfinished logins: {error}", flush=True)
        time.sleep(_LOOK_EVERY_S)


def relieve(root: str = "") -> int:
    """End the older half of what each address may leave unfinished, if it has about that many; return how many.

    Others at the same address, such as the head's own logins beside a job's, then get in at one of their attempts.
    """
    proc = f"{root}/proc"
    listener = int(files.read(root + _PID) or 0)
    if not listener or read(listener, "comm", proc) not in (b"sshd\n", b"sshd-listener\n"):
        return 0
    # A child holds the other end of one of these until its user has logged in.
    pipes = set(_open(listener, "pipe", proc))
    if len(pipes) < _FROM_ONE * _CROWDED:
        return 0
    waiting = _unfinished(listener, pipes, proc)
    most = share(len(waiting))
    crowds = [sorted(logins) for logins in waiting.values() if len(logins) >= most * _CROWDED]
    return sum(_end(pid, listener, proc) for logins in crowds for _, pid in logins[: -(most // 2)])


def _unfinished(listener: int, pipes: Set[str], proc: str) -> Dict[str, List[Tuple[int, int]]]:
    """Return the unfinished logins by address, each with the time at which its process began, and its pid."""
    clients = dict(_clients(proc))
    found: Dict[str, List[Tuple[int, int]]] = {}
    for pid in [int(name) for name in os.listdir(proc) if name.isdigit()]:
        if _parent(pid, proc) == listener and pipes.intersection(_open(pid, "pipe", proc)):
            began = (read(pid, "stat", proc) or b"").rpartition(b")")[2].split()[19:20]
            client = next((clients[one] for one in _open(pid, "socket", proc) if one in clients), "")
            found.setdefault(client, []).append((int(began[0]) if began else 0, pid))
    return found


def _parent(pid: int, proc: str) -> int:
    found = re.search(rb"^PPid:\t(\d+)$", read(pid, "status", proc) or b"", re.MULTILINE)
    return int(found[1]) if found else 0


def _open(pid: int, kind: str, proc: str) -> Iterator[str]:
    """Yield the numbers of a process's open pipes or sockets, but for its standard streams, which many share."""
    try:
        names = set(os.listdir(f"{proc}/{pid}/fd")) - {"0", "1", "2"}
    except OSError:
        return
    for name in names:
        try:
            what, _, number = os.readlink(f"{proc}/{pid}/fd/{name}").partition(":")
        except OSError:
            continue
        if what == kind:
            yield number.strip("[]")


def _clients(proc: str) -> Iterator[Tuple[str, str]]:
    """Yield the number of each TCP socket, and the address at its other end."""
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for fields in map(str.split, files.read(f"{proc}/net/{table}").splitlines()[1:]):
            own, client = (_address(field, family) for field in fields[1:3])
            yield fields[9], _HERE if client == own or client.startswith("127.") else client


def _address(field: str, family: int) -> str:
    """Return an address of /proc/net/tcp or tcp6: words of this machine's byte order, in hexadecimal."""
    digits = field.partition(":")[0]
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)).replace("::ffff:", "")


def _end(pid: int, listener: int, proc: str) -> int:
    """End a login; return 0 if it has ended, and another process may have its number."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return 0
    try:
        if _parent(pid, proc) != listener:
            return 0
        signal.pidfd_send_signal(process, signal.SIGKILL)
        return 1
    except OSError:
        return 0
    finally:
        os.close(process)
