"""Make the instance's own NVMe disks one fast directory. Its data end with the instance."""

from __future__ import annotations

import contextlib
import os
from typing import Callable

from phalanx.node import files, proc_files
from phalanx.node.command import run

PLACE = "/scratch"
# Where AWS's DLAMIs have joined and mounted the disks themselves (docs/aws-behaviour.md 5.8).
_OF_DLAMI = "/opt/dlami/nvme"
# docs/aws-behaviour.md 2.48
_MODEL = "Amazon EC2 NVMe Instance Storage"
_LABEL = "phalanx-scratch"
_JOINED = "/dev/md/phalanx-scratch"
# Amazon Linux 2023 has no mdadm.
_JOIN = f"command -v mdadm || dnf -qy install mdadm; mdadm --create {_JOINED} --run --level=0"


def mount(owner: int, say: Callable[[str], None], root: str = "") -> None:
    """Mount the disks at PLACE, now and at each boot, for the user `owner`. Do nothing if there are none.

    Disks with data are left alone, and so is a PLACE with data: the image's, or of an earlier boot. Raises
    CommandError.
    """
    there = root + PLACE
    if os.path.isdir(there) and os.listdir(there):
        return
    if _is_mounted(_OF_DLAMI, root):
        with contextlib.suppress(FileExistsError):
            os.symlink(_OF_DLAMI, there)
    else:
        disks = [disk for disk in _disks(root) if not run(["lsblk", "-nro", "FSTYPE,MOUNTPOINT", disk], 60).strip()]
        if not disks:
            return
        say(f"{len(disks)} local disks become {PLACE}")
        # `nodiscard`: these disks are blank, and to trim terabytes takes minutes.
        run(["mkfs.ext4", "-q", "-E", "nodiscard", "-L", _LABEL, _joined(disks)], 600)
        os.makedirs(there, exist_ok=True)
        options = "noatime,nosuid,nodev,nofail"
        files.add_to_block("/etc/fstab", f"LABEL={_LABEL}", PLACE, "ext4", options, "0", "0", root=root)
        run(["mount", PLACE], 60)
    files.chown(there, owner)


def place(root: str = "") -> str:
    """Return PLACE if there is one; "" on a machine without disks of its own."""
    there = root + PLACE
    return PLACE if os.path.ismount(there) or os.path.islink(there) else ""


def _is_mounted(path: str, root: str) -> bool:
    return any(fields[4] == path for fields in proc_files.mounts(root))


def _disks(root: str) -> list[str]:
    """Return the instance's own disks. A container may see its host's in /sys, without having their devices."""
    block = f"{root}/sys/block"
    names = sorted(os.listdir(block)) if os.path.isdir(block) else []
    found = [name for name in names if files.read(f"{block}/{name}/device/model").strip() == _MODEL]
    return [f"{root}/dev/{name}" for name in found if os.path.exists(f"{root}/dev/{name}")]


def _joined(disks: list[str]) -> str:
    """Return the only disk, or all of them striped (RAID 0)."""
    if len(disks) == 1:
        return disks[0]
    run(["sh", "-c", f"{_JOIN} --raid-devices={len(disks)} {' '.join(disks)}"], 300)
    return _JOINED
