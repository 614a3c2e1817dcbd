"""The agent's state on this disk, which belongs to one instance, and the unit that continues from it after a reboot.

An image that was made from a node contains that node's state, and its unit, which systemd starts before user data runs.
"""

from __future__ import annotations

import os
import sys

from phalanx.node import files

HOME = "/opt/phalanx"
SSH = "/etc/ssh/phalanx"
BOOTED = f"{HOME}/booted"
"""How the boot ended; no such file before that."""

SERVE = (sys.executable, "-IS", f"{HOME}/agent", "serve")
"""The command of the unit."""
RESTART_S = 5

# With less room, a disk counts as full: most of what the agent writes is a few KiB.
_LEAST_BYTES, _LEAST_FILES = 1 << 20, 64

_INSTANCE = f"{HOME}/instance"
# Also after SIGTERM, which is no failure to systemd; only exit status 0 is the agent's own decision to end.
_UNIT = f"""[Unit]
Description=phalanx
After=network-online.target remote-fs.target
Wants=network-online.target

[Service]
ExecStart={" ".join(SERVE)}
Restart=always
RestartPreventExitStatus=0
RestartSec={RESTART_S}
StandardOutput=journal+console
"""
# What user data has just written.
_NEW = ("agent", "config.json")
# Its trust and its keys, files of OpenSSH that refer to them, and what its jobs have installed.
_OF_ANOTHER = (
    SSH,
    "/var/lib/phalanx",
    "/var/cache/phalanx-s3",
    "/var/log/phalanx-s3",
    "/etc/exports.d/phalanx.exports",
    "/etc/ssh/sshd_config.d/60-phalanx.conf",
    "/etc/ssh/ssh_config.d/60-phalanx.conf",
)


def is_full(root: str = "") -> bool:
    """Whether this node's disk has no room for more of a job's data, or for more files."""
    found = os.statvfs(root + HOME)
    # Btrfs counts no files.
    return found.f_bavail * found.f_frsize < _LEAST_BYTES or (found.f_files > 0 and found.f_favail < _LEAST_FILES)


def begin(root: str = "") -> None:
    """Begin an instance's first boot: forget the node of which its image was made, and install the unit."""
    others = [f"{HOME}/{name}" for name in os.listdir(root + HOME) if name not in _NEW]
    for path in (*others, *_OF_ANOTHER):
        _remove(root + path)
    _unmount(f"{root}/etc/fstab")
    for path in ("/etc/fstab", "/etc/hosts", "/etc/environment"):
        text = files.read(root + path)
        if files.without_block(text) != text:
            files.write(root + path, files.without_block(text), is_synced=True)
    files.enable("phalanx", _UNIT, "multi-user", root)


def bind(instance_id: str, root: str = "") -> None:
    """Record to which instance this state belongs."""
    files.write(root + _INSTANCE, instance_id)


def belongs_to(instance_id: str, root: str = "") -> bool:
    return files.read(root + _INSTANCE) in ("", instance_id)


def _unmount(table: str) -> None:
    """Unmount what our block of fstab has mounted: another cluster's shared directory."""
    text = files.read(table)
    others = files.without_block(text).splitlines()
    for line in text.splitlines():
        if line not in others and line[0] != "#":
            os.spawnlp(os.P_WAIT, "umount", "umount", "-l", line.split()[1])


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil  # 5 ms, which only an image made from a node needs

        try:
            shutil.rmtree(path)
        except RecursionError:  # of a job's environment
            os.spawnlp(os.P_WAIT, "rm", "rm", "-rf", path)
    elif os.path.lexists(path):
        os.unlink(path)
