"""Mount the shared directory: EFS through its helper if the image has it, and otherwise by NFS 4.1."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable

from phalanx.node import files
from phalanx.node.command import insist

# docs/aws-behaviour.md 4.4
_NFS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"
_HELPER = "/sbin/mount.efs"
# DNS may take a minute to resolve a new mount target (docs/aws-behaviour.md 4.5).
_PASSING = "resolve|not known|name resolution|timed out|refused|unreachable|no route"


def mount(
    file_system: str, domain: str, directory: str, owner: int, patience_s: float, say: Callable[[str], None]
) -> None:
    """Mount the file system at `directory`, now and at each boot, and let the job user write there.

    `domain` is that of EFS's names, such as efs.us-east-1.amazonaws.com.
    A failure that may pass is repeated for `patience_s`; then, or for another one, this raises CommandError.
    """
    os.makedirs(directory, exist_ok=True)
    if not os.path.ismount(directory):
        end = time.monotonic() + patience_s
        kind, options, source = _source(file_system, domain)
        insist(["mount", "-t", kind, "-o", options, source, directory], 120, _PASSING, end, say)
        files.add_to_block("/etc/fstab", f"{source} {directory} {kind} _netdev,{options} 0 0\n")
    _let_write(directory, owner)


def _source(file_system: str, domain: str) -> tuple[str, str, str]:
    """Return the mount's type, options and source that this image supports."""
    if os.path.exists(_HELPER):
        return "efs", "tls", f"{file_system}:/"
    return "nfs4", _NFS, f"{file_system}.{domain}:/"


def _let_write(directory: str, owner: int) -> None:
    """Give the job user a new file system, and of one with data only .phalanx: its root is not ours to change."""
    if not os.listdir(directory):
        files.chown(directory, owner)
    elif os.stat(directory).st_uid != owner:
        with contextlib.suppress(FileExistsError):
            os.mkdir(f"{directory}/.phalanx")
            # Never through a link that somebody may have put there since.
            os.chown(f"{directory}/.phalanx", owner, owner, follow_symlinks=False)
