"""Mount the shared directory: EFS through its helper if the image has it, and otherwise by NFS 4.1."""

from __future__ import annotations

import os
import re
import time
from typing import Callable

from phalanx.node import files
from phalanx.node.command import CommandError, run

# docs/aws-behaviour.md 4.4
_NFS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"
_HELPER = "/sbin/mount.efs"
_NFS_HELPER = "/sbin/mount.nfs4"
# DNS may take a minute to resolve a new mount target (docs/aws-behaviour.md 4.5).
_DEADLINE_S = 240
_PASSING = "resolve|not known|name resolution|timed out|refused|unreachable|no route"
_INSTALL = (
    "apt-get -qq -o DPkg::Lock::Timeout=120 update && apt-get -qq -o DPkg::Lock::Timeout=120 install -y nfs-common"
)


def mount(file_system: str, region: str, directory: str, owner: int, say: Callable[[str], None]) -> None:
    """Mount the file system at `directory`, now and at each boot, and make the job user its owner."""
    os.makedirs(directory, exist_ok=True)
    if not os.path.ismount(directory):
        kind, options, source = _source(file_system, region, say)
        _insist(["mount", "-t", kind, "-o", options, source, directory], say)
        line = f"{source} {directory} {kind} _netdev,{options} 0 0\n"
        files.write("/etc/fstab", files.with_block(files.read("/etc/fstab"), line))
    files.chown(directory, owner)


def _source(file_system: str, region: str, say: Callable[[str], None]) -> tuple[str, str, str]:
    """Return the mount's type, options and source that this image supports."""
    if os.path.exists(_HELPER):
        return "efs", "tls", f"{file_system}:/"
    if not os.path.exists(_NFS_HELPER):
        run(["sh", "-c", _INSTALL], 300, say, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return "nfs4", _NFS, f"{file_system}.efs.{region}.{suffix}:/"


def _insist(command: list[str], say: Callable[[str], None]) -> None:
    end = time.monotonic() + _DEADLINE_S
    while True:
        try:
            run(command, 120)
            return
        except CommandError as error:
            passing = re.search(_PASSING, error.output, re.IGNORECASE)
            if not passing or time.monotonic() > end:
                raise
            say(f"{error}; trying again")
            time.sleep(3)
