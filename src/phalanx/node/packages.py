"""Install what the image lacks of the node contract, from the packages of its distribution."""

from __future__ import annotations

import importlib.util
import os
import time
from typing import Callable

from phalanx.node.command import insist

_APT = "/usr/bin/apt-get"
_INSTALL = (
    "export DEBIAN_FRONTEND=noninteractive; apt-get -qq -o DPkg::Lock::Timeout=120 update && "
    "apt-get -qq -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "
)


# FSx's own repository has modules for exact kernels (docs/aws-behaviour.md 4.7).
_FSX = "https://fsx-lustre-client-repo"
# What no repetition changes is that a package does not exist.
_PASSING = "(?s)^(?!.*(unable to locate|no match for argument|unable to find a match))"
_LUSTRE_BY_APT = f"""
. /etc/os-release; key=/etc/apt/keyrings/fsx-lustre.asc
mkdir -p /etc/apt/keyrings
curl -fsS --retry 3 -o $key {_FSX}-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc || exit
cd /etc/apt/sources.list.d
echo "deb [signed-by=$key] {_FSX}.s3.amazonaws.com/ubuntu $VERSION_CODENAME main" > fsx-lustre.list
{_INSTALL}lustre-client-modules-$(uname -r)
"""

# AWS has it for Debian's relatives as a file (docs/aws-behaviour.md 4.9).
_MOUNTPOINT_BY_APT = f"""
cd "$(mktemp -d)"; case $(uname -m) in aarch64) arch=arm64 ;; *) arch=x86_64 ;; esac
curl -fsS --retry 3 -O https://s3.amazonaws.com/mountpoint-s3-release/latest/$arch/mount-s3.deb || exit
{_INSTALL}./mount-s3.deb
"""


def lacking(path: str, root: str = "", serves: bool = False) -> list[str]:
    """Return the packages to install; `path` is the image's PATH. `serves`: this machine is an NFS server.

    None without apt, nor where /usr is read-only: a node of the local cloud that shares its machine's programs.
    """
    if not os.access(root + _APT, os.X_OK) or not os.access(f"{root}/usr/bin", os.W_OK):
        return []
    machine = os.uname().machine
    libraries = f"{root}/usr/lib/{machine}-linux-gnu"
    nfs = any(os.path.exists(f"{root}/sbin/mount.{kind}") for kind in ("efs", "nfs4"))
    there = {
        "nfs-common": nfs,
        "nfs-kernel-server": not serves or os.path.exists(f"{root}/usr/sbin/exportfs"),
        "openmpi-bin": _has("mpiexec", path),
        "python3-venv": importlib.util.find_spec("ensurepip"),
        # MXNet's wheel leaves these to the system. No other processor has the latter.
        "libgomp1": os.path.exists(f"{libraries}/libgomp.so.1"),
        "libquadmath0": machine != "x86_64" or os.path.exists(f"{libraries}/libquadmath.so.0"),
    }
    return [name for name, found in there.items() if not found]


def install(names: list[str], patience_s: float, say: Callable[[str], None]) -> None:
    """Install packages. Any failure may pass (a lock of apt, a mirror, the network) and is repeated for `patience_s`.

    Raises CommandError.
    """
    if names:
        say(f"installing {' '.join(names)}")
        insist(["sh", "-c", _INSTALL + " ".join(names)], 300, "", time.monotonic() + patience_s, say)


def install_lustre(patience_s: float, say: Callable[[str], None], root: str = "") -> None:
    """Install Lustre's client unless the image has it: from Amazon Linux, or for Ubuntu from FSx. Raises CommandError.

    A kernel for which there is no module fails at once: no repetition changes that.
    """
    if os.path.exists(f"{root}/sbin/mount.lustre"):
        return
    say("installing Lustre's client")
    script = _LUSTRE_BY_APT if os.access(root + _APT, os.X_OK) else "dnf -q -y install lustre-client"
    insist(["sh", "-c", script], 300, _PASSING, time.monotonic() + patience_s, say)


def install_efs_utils(patience_s: float, say: Callable[[str], None], root: str = "") -> None:
    """Install EFS's helper, which mounts by TLS, unless the image has it or its system has no package of it."""
    if os.path.exists(f"{root}/sbin/mount.efs") or not _has("dnf", f"{root}/usr/bin"):
        return
    say("installing amazon-efs-utils")
    script = "dnf -q -y install amazon-efs-utils"
    insist(["sh", "-c", script], 300, _PASSING, time.monotonic() + patience_s, say)


def install_mountpoint(patience_s: float, say: Callable[[str], None], root: str = "") -> None:
    """Install Mountpoint for S3 unless the image has it: from Amazon Linux, or AWS's file for Ubuntu.

    Raises CommandError.
    """
    if _has("mount-s3", f"{root}/usr/bin:{root}/usr/sbin:{root}/usr/local/sbin"):
        return
    say("installing Mountpoint for S3")
    script = _MOUNTPOINT_BY_APT if os.access(root + _APT, os.X_OK) else "dnf -q -y install mount-s3"
    insist(["sh", "-c", script], 300, _PASSING, time.monotonic() + patience_s, say)


def _has(program: str, path: str) -> bool:
    """Whether this PATH has the program. `shutil.which` takes 5 ms to import."""
    return any(os.access(f"{directory}/{program}", os.X_OK) for directory in path.split(":"))
