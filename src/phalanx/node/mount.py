"""Mount the shared directory: EFS through its helper if the image has it, else by NFS 4.1; Lustre; or the head's.

A directory that the head serves ends with the head.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from typing import Callable, NamedTuple

from phalanx.node import files
from phalanx.node.command import CommandError, insist, run

# Root on one node must not leave a program there that gives a job root on another.
_NO_ROOT = "nosuid,nodev"
# docs/aws-behaviour.md 4.4
_NFS = f"{_NO_ROOT},nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2"
_HELPER = "/sbin/mount.efs"
HEAD = "head"
"""In place of a file system's id: the head serves the directory."""
# DNS may take a minute to resolve a new mount target (docs/aws-behaviour.md 4.5).
_PASSING = "resolve|not known|name resolution|timed out|refused|unreachable|no route"
LUSTRE = "@tcp:/"
"""What the name of a file system of FSx for Lustre contains, between its server and its mount name."""
# Unresolved names, and servers that do not answer; a wrong mount name or a missing module never passes (4.16).
_PASSING_OF_LUSTRE = f"{_PASSING}|parse NID|MGS running|input/output error|time is up"
# A client of Lustre gives up after two minutes or more.
_WITHIN_S = 200
_LOOK_EVERY_S = 3.0
# A server that is only busy says sooner how large its file system is.
_ANSWER_S = 5.0


class Source(NamedTuple):
    """What is mounted: the type of file system, mount's options, the place, and which failures may pass."""

    kind: str
    options: str
    place: str
    passing: str = _PASSING


def of_efs(file_system: str, domain: str, tls: bool = False) -> Source:
    """Return an EFS file system; `domain` is that of EFS's names, such as efs.us-east-1.amazonaws.com.

    Raises CommandError if it is to be mounted by TLS, and the image can't.
    """
    if os.path.exists(_HELPER):
        return Source("efs", f"tls,{_NO_ROOT}", f"{file_system}:/")
    if tls:
        raise CommandError(f"mount -t efs -o tls {file_system}:/", 1, "the image has no amazon-efs-utils")
    return Source("nfs4", _NFS + ",noresvport", f"{file_system}.{domain}:/")


def of_lustre(place: str) -> Source:
    """Return a file system of FSx for Lustre, such as fs-0123abcd.fsx.us-east-1.amazonaws.com@tcp:/abcdefgh."""
    return Source("lustre", f"relatime,flock,{_NO_ROOT}", place, _PASSING_OF_LUSTRE)


def of_head(address: str, directory: str) -> Source:
    """Return the directory that the head serves. It boots at the same time, so any failure may pass."""
    return Source("nfs4", _NFS, f"{address}:{directory}", "")


def mount(
    source: Source, directory: str, owner: int, patience_s: float, say: Callable[[str], None], linked: str = ""
) -> None:
    """Mount the source at `directory`, now and at each boot, and let the job user write there.

    A failure that may pass is repeated for `patience_s`; then, or for another one, this raises CommandError.
    """
    os.makedirs(directory, exist_ok=True)
    if not os.path.ismount(directory):
        kind, options, end = source.kind, source.options, time.monotonic() + patience_s
        command = ["mount", "-t", kind, "-o", options, source.place, directory]
        insist(command, _WITHIN_S, source.passing, end, say)
        files.add_to_block("/etc/fstab", source.place, directory, kind, f"_netdev,{options}", "0", "0")
    _let_write(directory, owner, linked)
    found = os.stat(directory)
    if found.st_uid != owner and not (found.st_mode & 2 or linked):
        say(f"{directory} belongs to uid {found.st_uid}: jobs can write only where uid {owner} may")


def serve(directory: str, owner: int, networks: str) -> None:
    """Serve a directory of this machine's disk over NFS to the nodes' networks (CIDR blocks with commas)."""
    os.makedirs(directory, exist_ok=True)
    _bind_to_itself(directory)
    options = "rw,no_subtree_check,no_root_squash"
    clients = [f"{network}({options})" for network in networks.split(",")]
    files.write("/etc/exports.d/phalanx.exports", files.line(directory, *clients))
    if os.path.isdir("/run/systemd/system"):
        run(["systemctl", "enable", "--now", "nfs-server"], 120)
    run(["sh", "-c", "exportfs -ra"], 60)
    _let_write(directory, owner)


def _bind_to_itself(directory: str) -> None:
    """Mount the directory on itself, now and at each boot, so that what a worker's root writes has no rights here."""
    options = f"bind,{_NO_ROOT}"
    run(["sh", "-c", 'mountpoint -q "$1" || mount -o "$2" "$1" "$1"', "sh", directory, options], 60)
    files.add_to_block("/etc/fstab", directory, directory, "none", options, "0", "0")


def follow(source: Source, directory: str, owner: int, patience_s: float, say: Callable[[str], None]) -> None:
    """Mount a new head's directory in place of its predecessor's, which does not answer any more."""
    run(["umount", "-f", "-l", directory], 60)
    mount(source, directory, owner, patience_s, say)


class Watch:
    """Looks whether the shared directory answers, in threads of its own. `is_silent`: it does not."""

    def __init__(self, directory: str) -> None:
        self.is_silent = False
        self._directory = directory
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            # The size of a file system is always asked of its server, and waits for it as long as that takes.
            look = threading.Thread(target=_ask_size, args=(self._directory,), daemon=True)
            look.start()
            look.join(_ANSWER_S)
            self.is_silent = look.is_alive()
            look.join()
            self.is_silent = False
            time.sleep(_LOOK_EVERY_S)


# One per process, however often its agent restarts.
watch = functools.lru_cache(Watch)


def _ask_size(directory: str) -> None:
    with contextlib.suppress(OSError):
        os.statvfs(directory)


def _let_write(directory: str, owner: int, linked: str = "") -> None:
    """Give the job user a new file system, and of another only .phalanx: its root is not ours to change.

    A new one is empty, and only root may write there (docs/aws-behaviour.md 4.20): somebody has decided about another.
    A new one that is linked to S3 has data/ already, where what jobs may only read stays root's.
    """
    found = os.stat(directory)
    is_ours = found.st_uid == owner
    if linked and os.listdir(directory) == ["data"] and not is_ours:
        # The root last: until then, no job could put a link in the way. Then one could: it is never done again.
        places = [f"{directory}/data/{name[:-1]}" for name in linked.split(",") if name.endswith("+")]
        for place in (*places, f"{directory}/data"):
            os.chown(place, owner, owner, follow_symlinks=False)
        files.chown(directory, owner)
    elif not (os.listdir(directory) or found.st_uid or found.st_mode & 2):
        files.chown(directory, owner)
    elif not is_ours:
        with contextlib.suppress(FileExistsError):
            os.mkdir(f"{directory}/.phalanx")
            # Never through a link that somebody may have put there since.
            os.chown(f"{directory}/.phalanx", owner, owner, follow_symlinks=False)
