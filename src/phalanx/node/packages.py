"""Install what the image lacks of the node contract, from the packages of its distribution."""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import time
from typing import Callable

from phalanx.node.command import insist

_APT = "/usr/bin/apt-get"
_INSTALL = (
    "export DEBIAN_FRONTEND=noninteractive; apt-get -qq -o DPkg::Lock::Timeout=120 update && "
    "apt-get -qq -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "
)


def lacking(path: str, root: str = "", serves: bool = False) -> list[str]:
    """Return the packages to install; `path` is the image's PATH. `serves`: this machine is an NFS server.

    None without apt, nor where /usr is read-only: a node of the local cloud that shares its machine's programs.
    """
    if not os.access(root + _APT, os.X_OK) or not os.access(f"{root}/usr/bin", os.W_OK):
        return []
    nfs = any(os.path.exists(f"{root}/sbin/mount.{kind}") for kind in ("efs", "nfs4"))
    there = {
        "nfs-common": nfs,
        "nfs-kernel-server": not serves or os.path.exists(f"{root}/usr/sbin/exportfs"),
        "openmpi-bin": shutil.which("mpiexec", path=path),
        "python3-venv": importlib.util.find_spec("ensurepip"),
        # MXNet's wheel leaves these to the system: OpenMP, and libquadmath, which comes with Fortran's on x86-64 alone.
        "libgomp1": glob.glob(f"{root}/usr/lib/*/libgomp.so.1"),
        "libgfortran5": glob.glob(f"{root}/usr/lib/*/libgfortran.so.5"),
    }
    return [name for name, found in there.items() if not found]


def install(names: list[str], patience_s: float, say: Callable[[str], None]) -> None:
    """Install packages. Any failure may pass (a lock of apt, a mirror, the network) and is repeated for `patience_s`.

    Raises CommandError.
    """
    if names:
        say(f"installing {' '.join(names)}")
        insist(["sh", "-c", _INSTALL + " ".join(names)], 300, "", time.monotonic() + patience_s, say)
