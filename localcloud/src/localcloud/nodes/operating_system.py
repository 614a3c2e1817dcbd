"""A node with a full operating system: an image's tree below the node's disk, and systemd as process 1.

All else belongs to this local cloud and not to the image: the layer above it (image_layer.py), /run, /dev and the file
systems. As in rootfs.py, the root is built from outside, and nothing that is created follows links.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from localcloud.nodes import cgroups, image_layer, kernel, rootfs
from localcloud.nodes.machine import STANDARD_PATH, Machine, NodeError, Site

_MOUNT_POINTS = ("dev", "proc", "sys", "run")
_SYSTEMD = "/lib/systemd/systemd"
_MOST_FDS = 1 << 16
# systemd begins poweroff.target at SIGRTMIN+4 (systemd(1)).
POWER_OFF = signal.SIGRTMIN + 4
# From this, cloud-init's detection of its platform concludes that it runs on EC2, before it asks the metadata service.
_UUID = "ec2e1916-9099-7caf-fd21-012345abcdef"
_UNITS, _NAME = "etc/systemd/system", "weather.service"
_MIRRORS = "etc/apt/apt.conf.d/99weather"
# No mirror answers until the unit has removed this.
_NO_MIRROR = 'Acquire::http::Proxy "http://127.0.0.1:9";\nAcquire::https::Proxy "http://127.0.0.1:9";\n'
# At first as apt-daily at an AMI's first boot: it holds the lock of the lists, for which apt-get does not wait. It
# begins with the service of cloud-init that runs user data, because a busy machine takes a minute to come to that.
_BUSY = """\
import fcntl, os, time; lists = open('/var/lib/apt/lists/lock', 'w'); fcntl.lockf(lists, fcntl.LOCK_EX); \
time.sleep({half_s:.1f}); lists.close(); time.sleep({half_s:.1f}); os.remove('/{mirrors}')"""
_UNIT = """\
[Unit]
After=cloud-config.service
Before=cloud-final.service

[Service]
ExecStart=/usr/bin/python3 -c "{script}"
"""


def require(site: Site, machine: Machine) -> Path:
    """Return the tree of the machine's image. Raises NodeError if it can't run here."""
    name = machine.image
    tree = (site.images or Path("/nonexistent")) / name / "tree"
    if not tree.is_dir():
        raise NodeError(f"the image {name} is not built (localcloud image build {name})")
    if site.mode != "range":
        raise NodeError(f"the image {name} needs separate accounts, and this local cloud is in mode {site.mode}")
    if site.cgroup is None:
        raise NodeError(f"the image {name} runs systemd, and no cgroup is delegated to the local cloud")
    return tree


def build(site: Site, machine: Machine, tty: str) -> Path:
    """Mount the root of `machine` in its own mount namespace, except `enter`'s part, and change to it; return its path.

    `tty` becomes its console.
    """
    tree, disk = require(site, machine), site.disk(machine.instance_id)
    upper, work, root = (rootfs.make_directory(disk, name) for name in ("upper", "work", rootfs.ROOT))
    layers = f"upperdir={upper},workdir={work}"
    rootfs.mount_overlay(site, root, f"{site.layer}:{tree}", 0, layers)
    for name in _MOUNT_POINTS:
        rootfs.make_directory(root, name)
    rootfs.mount_run(root)
    rootfs.make_directory(root, "run/efs.host").chmod(0o700)
    rootfs.mount_devices(site, machine, root)
    kernel.mount(tty, rootfs.make_file(root / "dev/console"), None, kernel.MS_BIND)
    rootfs.mount_file_systems(site, machine, root)
    rootfs.mount_local_disks(site, machine, root)
    rootfs.mount_binds(root, [path for path in site.pip_paths if not image_layer.holds(path)])
    plant(root, machine)
    os.chdir(root)
    return root


def enter(site: Site, machine: Machine) -> None:
    """Make this directory the root of the mount namespace, with /proc and /sys of its own namespaces."""
    kernel.mount("proc", "proc", "proc", rootfs.QUIET | kernel.MS_NOEXEC)
    _mount_sys()
    rootfs.show_cpus(machine.vcpus)
    cgroups.show(site, machine)
    rootfs.pivot()


def start() -> None:
    """Become systemd. Only returns by raising OSError."""
    console = os.open("/dev/console", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(console, fd)
    os.closerange(3, _MOST_FDS)
    os.execve(_SYSTEMD, ["/sbin/init"], {"container": "localcloud", "PATH": STANDARD_PATH})


def _mount_sys() -> None:
    """Mount sysfs's directories, read-only, beside the file that a hypervisor would show."""
    flags = rootfs.QUIET | kernel.MS_NOEXEC
    real, shown = Path("run/sysfs"), Path("sys")
    real.mkdir()
    kernel.mount("sysfs", real, "sysfs", flags | kernel.MS_RDONLY)
    kernel.mount("tmpfs", shown, "tmpfs", flags, "mode=755,size=1m")
    for name in sorted(path.name for path in real.iterdir() if path.name != "hypervisor"):
        (shown / name).mkdir()
        kernel.bind(real / name, shown / name)
    (shown / "hypervisor").mkdir()
    (shown / "hypervisor/uuid").write_text(f"{_UUID}\n")
    kernel.mount(None, shown, None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | flags)
    kernel.unmount(real)
    real.rmdir()


def plant(root: Path, machine: Machine) -> None:
    """Change the machine's root before its process 1 starts."""
    if machine.apt_busy_s:
        script = _BUSY.format(half_s=machine.apt_busy_s / 2, mirrors=_MIRRORS)
        _write(root, _MIRRORS, _NO_MIRROR)
        _write(root, f"{_UNITS}/{_NAME}", _UNIT.format(script=script))
        enabled = rootfs.make_directory(root, f"{_UNITS}/cloud-final.service.wants") / _NAME
        if not enabled.is_symlink():
            enabled.symlink_to(f"../{_NAME}")


def _write(root: Path, name: str, text: str) -> None:
    directory, _, file = name.rpartition("/")
    rootfs.make_file(rootfs.make_directory(root, directory) / file).write_text(text)
