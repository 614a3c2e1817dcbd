"""The cluster's ssh certificate authority, and a node's keys. Private keys never leave their machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from typing import Any, Callable, Iterable, Sequence, Tuple

from phalanx.node import files
from phalanx.node.command import CommandError, run
from phalanx.node.disk import SSH
from phalanx.node.proc_files import read_each
from phalanx.node.roster import MASTER, Node

# Each takes four files for a moment, and a small disk has few.
_SIGNED_AT_ONCE = 64

VALID_S = 24 * 3600
# 5 minutes of clock skew are allowed.
_VALIDITY = f"-5m:+{VALID_S}s"
_OF_FIPS = "ecdsa"


def make_key(path: str, comment: str, kind: str = "ed25519") -> str:
    """Return the public key line of the key at `path`; generate the key if it does not exist."""
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        beside = f"{path}.phalanx-{os.getpid()}"
        if os.path.exists(beside):
            os.unlink(beside)  # of an earlier boot; ssh-keygen would ask
        run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", comment, "-f", beside], 30)
        # The private half last: where it is, both are complete, also after a power failure.
        for half in (".pub", ""):
            files.sync(beside + half)
            os.rename(beside + half, path + half)
            files.sync(os.path.dirname(path))
    return files.read(path + ".pub").strip()


def make_keys(root: str, comment: str) -> str:
    """Make the keys of this machine and of its user, where they are missing; return the path of the user's.

    They are of a kind that the image's OpenSSH accepts: in FIPS mode it refuses ed25519 (docs/aws-behaviour.md 6.9).
    """
    kind = kind_of_keys(root)
    try:
        make_key(root + user_key(kind), comment, kind)
    except CommandError as error:
        if "FIPS" not in error.output:
            raise
        kind = _OF_FIPS
        make_key(root + user_key(kind), comment, kind)
    make_key(root + host_key(kind), comment, kind)
    return root + user_key(kind)


def kind_of_keys(root: str = "") -> str:
    """Return the kind of the keys that this node has, or tries first."""
    return _OF_FIPS if os.path.exists(root + user_key(_OF_FIPS)) else "ed25519"


def host_key(kind: str) -> str:
    """Return the path of this machine's key."""
    return f"/etc/ssh/ssh_host_{kind}_key"


def user_key(kind: str) -> str:
    """Return the path of the key with which jobs log in to other nodes."""
    return f"{SSH}/id_{kind}"


class Authority:
    """Signs certificates with the key at `path`, which is generated at the first use.

    Users log in only from `networks` (CIDR blocks with commas). Signing takes files in `memory`, by default the key's
    directory: in /run, it needs no room on a disk that a job may have filled.
    """

    def __init__(self, path: str, cluster: str, networks: str, memory: str = "") -> None:
        self._path, self._cluster, self._networks = path, cluster, networks
        self._memory = memory or os.path.dirname(path)
        # Each login checks this signature several times, and OpenSSH's own code for ed25519 is slow: with P-256, which
        # libcrypto computes, a login costs both sides 55 ms of CPU instead of 80.
        self.public_key = make_key(path, f"{cluster} authority", "ecdsa")

    def sign(self, nodes: Sequence[Node], user: str) -> dict[str, tuple[str, str]]:
        """Return host and user certificate of each node by instance id, valid for 24 hours from 5 minutes ago.

        A user's is good only for logins from inside the networks: a copy of it elsewhere opens nothing.
        """
        found: dict[str, tuple[str, str]] = {}
        for start in range(0, len(nodes), _SIGNED_AT_ONCE):
            found.update(self._sign_some(nodes[start : start + _SIGNED_AT_ONCE], user))
        return found

    def _sign_some(self, nodes: Sequence[Node], user: str) -> dict[str, tuple[str, str]]:
        base = os.path.join(self._memory, f"signing-{os.getpid()}")
        for node in nodes:
            files.write(f"{base}/{node.instance_id}.host.pub", node.host_key + "\n")
            files.write(f"{base}/{node.instance_id}.user.pub", node.user_key + "\n")
        users = [f"{base}/{node.instance_id}.user.pub" for node in nodes]
        jobs = [lambda: self._keygen(["-n", user, "-O", f"source-address={self._networks}"], users)]
        jobs += [lambda node=node: self._sign_host(base, node) for node in nodes]
        in_parallel(jobs, os.cpu_count() or 1)
        found = {node.instance_id: _collect(f"{base}/{node.instance_id}") for node in nodes}
        os.rmdir(base)
        return found

    def _sign_host(self, base: str, node: Node) -> None:
        names = [node.name, node.address, node.hostname, *([MASTER] if node.head else [])]
        self._keygen(["-h", "-n", ",".join(names)], [f"{base}/{node.instance_id}.host.pub"])

    def _keygen(self, options: list[str], public_keys: list[str]) -> None:
        run(["ssh-keygen", "-q", "-s", self._path, "-I", self._cluster, "-V", _VALIDITY, *options, *public_keys], 60)


def _collect(path: str) -> tuple[str, str]:
    """Return the two certificates beside `path`, and remove all files of the signing."""
    host, user = files.read(f"{path}.host-cert.pub"), files.read(f"{path}.user-cert.pub")
    for kind in ("host", "user"):
        os.unlink(f"{path}.{kind}.pub")
        os.unlink(f"{path}.{kind}-cert.pub")
    return host.strip(), user.strip()


def in_parallel(jobs: Iterable[Callable[[], Any]], width: int) -> None:
    """Call all `jobs` in at most `width` threads; raise the first error when all have ended."""
    waiting, errors = list(jobs)[::-1], []

    def work() -> None:
        for job in iter(lambda: waiting.pop() if waiting else None, None):
            try:
                job()
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(min(width, len(waiting)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def reload_sshd(proc: str = "/proc") -> int:
    """Make the listening sshd reload its configuration; return how many there were.

    The same everywhere: what `systemctl reload` does is this signal. With socket activation (Ubuntu 24.04)
    there may be none; the next one reads the new files anyway.
    """
    lines, _ = read_each([int(pid) for pid in os.listdir(proc) if pid.isdigit()], "cmdline", proc)
    listening = [pid for pid, title in lines.items() if title.startswith(b"sshd: ") and b"[listener]" in title]
    for pid in listening:
        os.kill(pid, signal.SIGHUP)
    return len(listening)


def version_of_sshd(root: str = "") -> Tuple[int, int]:
    """Return this machine's version of OpenSSH, (0, 0) if it can't be told."""
    program = f"{root}/usr/sbin/sshd"
    if not os.access(program, os.X_OK):
        return 0, 0
    try:
        # Old ones do not know -V, and show the version with their usage.
        said = subprocess.run([program, "-V"], stderr=subprocess.PIPE, check=False, timeout=10).stderr.decode()
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return 0, 0
    found = re.search(r"^OpenSSH_(\d+)\.(\d+)", said, re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else (0, 0)
