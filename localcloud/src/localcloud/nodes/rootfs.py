"""A node's root file system: its disk, the host's /usr read-only, and the image's /etc under a writable layer.

It is built from outside. The disk of a rebooting machine may contain links that lead outside, so nothing that is
created on it follows links.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from localcloud.nodes import cfn_programs, cgroups, exports, kernel
from localcloud.nodes.machine import Machine, Site
from localcloud.nodes.programs import EFS_ROOT, GPUS, PROGRAMS, PROGRAMS_FOR_GPUS

_DIRECTORIES = """
usr etc proc sys sbin dev tmp root run run/sshd run/lock run/user run/efs.host var/lib/cloud/instance/scripts
var/lib/cloud/instance/sem var/lib/cloud/data var/lib/cloud/scripts/per-boot var/log var/tmp
"""
# Not needed for building: the machine may have replaced them with links to a larger disk.
_MACHINES_OWN = "home opt srv mnt media var/cache var/mail var/spool"
# Directory on the disk; a node does not see what is beside it.
ROOT = "root"
_LAYERS = ("layer/etc", "layer/work")
_STICKY = ("tmp", "var/tmp")
_PRIVATE = ("root", "run/efs.host")
# Beside the root, and emptied when the machine is stopped.
LOCAL_DISKS = "local-disks"
_DLAMI_DISKS = "opt/dlami/nvme"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# Ubuntu's systemd-tmpfiles empties /tmp at each boot. /run is never on the disk, where a machine may have put a link.
_EMPTY_AT_BOOT = ("run", "tmp")
_LIBRARIES = ("bin", "lib", "lib32", "lib64", "libx32")
QUIET = kernel.MS_NOSUID | kernel.MS_NODEV
# Memory beside what disks and /dev/shm may have. To reload its units, systemd needs 16 MiB of it to be free. Without
# nr_inodes, a tmpfs may have half as many files as the memory has pages.
_RUN = "mode=755,size=64m,nr_inodes=65536"
_LOCK = "mode=1777,size=5m,nr_inodes=1024"


def build(site: Site, machine: Machine) -> Path:
    """Mount the root of `machine` in its own mount namespace, except `enter`'s part, and change to it.

    Returns its path, which the node's user namespace may not be able to access (below root's home, for example).
    """
    disk = site.disk(machine.instance_id)
    root = disk / ROOT
    if root.exists():
        # Python's rmtree fails at a thousand nested directories. Another uid would lose its capabilities with exec.
        subprocess.run(["rm", "-rf", *(root / name for name in _EMPTY_AT_BOOT)], check=True, user=0, group=0)
    _make_directories(disk, root)
    kernel.bind("/usr", root / "usr", read_only=True)
    _show_libraries(root)
    _mount_image(site, disk, root, with_gpus=bool(machine.gpus))
    _show_cfn_programs(site, root)
    _show_gpus(machine, root)
    mount_devices(site, machine, root)
    mount_file_systems(site, machine, root)
    mount_local_disks(site, machine, root)
    mount_binds(root, site.binds)
    os.chdir(root)
    return root


def enter(site: Site, machine: Machine) -> None:
    """Make this directory the root of the mount namespace, with /proc and /sys of its own namespaces."""
    kernel.mount("proc", "proc", "proc", QUIET | kernel.MS_NOEXEC)
    kernel.mount("sysfs", "sys", "sysfs", QUIET | kernel.MS_RDONLY)
    show_cpus(machine.vcpus)
    cgroups.show(site, machine)
    pivot()


def pivot() -> None:
    """Make this directory the root of the mount namespace."""
    # pivot_root refuses a mount from a namespace above.
    kernel.bind(".", ".")
    # By its name, because "." is still the directory below that mount.
    kernel.pivot_root(f"../{ROOT}")


def is_first_boot(site: Site, machine: Machine) -> bool:
    """Whether the disk is still empty; call this before `build`."""
    return not (site.disk(machine.instance_id) / ROOT).exists()


def _make_directories(disk: Path, root: Path) -> None:
    for name in (ROOT, *_LAYERS):
        make_directory(disk, name)
    make_directory(root, "run")
    mount_run(root)
    for name in _DIRECTORIES.split():
        make_directory(root, name)
    for name in _MACHINES_OWN.split():
        if not (root / name).is_symlink():
            make_directory(root, name)
    for names, mode in ((_STICKY, 0o1777), (_PRIVATE, 0o700)):
        for name in names:
            (root / name).chmod(mode)
    _link(root / "var/run", Path("/run"))


def mount_run(root: Path) -> None:
    """Mount /run in memory, as systemd does: only root writes there, except in /run/lock."""
    kernel.mount("tmpfs", root / "run", "tmpfs", QUIET, _RUN)
    make_directory(root, "run/lock")
    kernel.mount("tmpfs", root / "run/lock", "tmpfs", QUIET | kernel.MS_NOEXEC, _LOCK)


def make_directory(root: Path, name: str) -> Path:
    """Create a directory below `root`. Raises OSError where a link is in the way."""
    here = root
    for part in Path(name).parts:
        here /= part
        if here.is_symlink():
            raise OSError(errno.ELOOP, "a link is where the image has a directory", str(here))
        here.mkdir(exist_ok=True)
    return here


def make_file(path: Path) -> Path:
    """Create an empty file in a directory from `make_directory`, unless it exists."""
    if path.is_symlink():
        path.unlink()
    path.touch()
    return path


def _link(here: Path, target: Path) -> None:
    """Create a link, unless an earlier boot has."""
    if not here.is_symlink():
        here.symlink_to(target)


def _show_libraries(root: Path) -> None:
    """Show /bin, /lib and so on: links into /usr on current systems, directories on older ones."""
    for host in (Path("/", name) for name in _LIBRARIES):
        here = root / host.name
        if host.is_symlink():
            _link(here, host.readlink())
        elif host.is_dir():
            kernel.bind(host, make_directory(root, host.name), read_only=True)


def _mount_image(site: Site, disk: Path, root: Path, with_gpus: bool) -> None:
    """Mount a writable /etc over the image's, and the image's programs over the host's."""
    layers = f"upperdir={disk}/layer/etc,workdir={disk}/layer/work"
    mount_overlay(site, root / "etc", f"{site.image}/etc", 0, layers)
    for name in PROGRAMS:
        for_gpus = f"{site.image}/gpus/{name}:" if with_gpus and f"gpus/{name}" in PROGRAMS_FOR_GPUS else ""
        host = Path("/", name).resolve()
        mount_overlay(site, root / name, f"{for_gpus}{site.image}/{name}:{host}", kernel.MS_RDONLY)


def _show_cfn_programs(site: Site, root: Path) -> None:
    """Show /opt/aws, unless the machine has replaced /opt with a link."""
    if not (root / "opt").is_symlink():
        kernel.bind(site.image / cfn_programs.ROOT, make_directory(root, cfn_programs.ROOT), read_only=True)


def _show_gpus(machine: Machine, root: Path) -> None:
    """Write what `nvidia-smi` reads. /run is empty at each boot, as the driver is not loaded."""
    if machine.gpus:
        Path(f"{root}{GPUS}").write_text(machine.gpus)
        if machine.gpus_after_s:
            Path(f"{root}{GPUS}.cold").write_text(str(machine.gpus_after_s))


def mount_overlay(site: Site, target: Path, lower: str, flags: int, layers: str = "") -> None:
    options = [f"lowerdir={lower}"]
    if layers:
        options.append(layers)
    if site.mode != "root":
        # in a user namespace, overlayfs may not use trusted.* attributes
        options.append("userxattr")
    kernel.mount("overlay", target, "overlay", flags, ",".join(options))


def mount_devices(site: Site, machine: Machine, root: Path) -> None:
    dev = root / "dev"
    kernel.mount("tmpfs", dev, "tmpfs", kernel.MS_NOSUID, "mode=755,size=1m,nr_inodes=1024")
    for name in _DEVICES:
        (dev / name).touch()
        kernel.mount(f"/dev/{name}", dev / name, None, kernel.MS_BIND)
    (dev / "pts").mkdir()
    (dev / "shm").mkdir()
    # where only one id is mapped, the group tty (5) does not exist
    tty = "" if site.mode == "single" else f",gid={site.root + 5}"
    kernel.mount("devpts", dev / "pts", "devpts", kernel.MS_NOSUID, f"newinstance,ptmxmode=0666,mode=620{tty}")
    kernel.bind(site.shm(machine.instance_id), dev / "shm")
    (dev / "ptmx").symlink_to("pts/ptmx")
    (dev / "fd").symlink_to("/proc/self/fd")
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        (dev / name).symlink_to(f"/proc/self/fd/{fd}")


def show_cpus(vcpus: int) -> None:
    """Show as many CPUs online as the machine's type has."""
    online = Path("run/cpus")
    online.write_text("0\n" if vcpus == 1 else f"0-{vcpus - 1}\n")
    kernel.mount(online, "sys/devices/system/cpu/online", None, kernel.MS_BIND)
    online.unlink()


def mount_file_systems(site: Site, machine: Machine, root: Path) -> None:
    """Bind what mount-s3 and /sbin/mount.{efs,lustre,nfs4} may mount into a directory that only root can enter."""
    shelf = Path(f"{root}{EFS_ROOT}")
    (shelf / "domain").write_text(machine.domain)
    (shelf / "address").write_text(machine.address)
    exports.show(site, machine, shelf)
    if (mounted := site.buckets / machine.vpc_id).is_dir():
        (shelf / "s3").mkdir()
        kernel.bind(mounted, shelf / "s3")
    (shelf / "lustre").mkdir()
    for name, place in machine.file_systems.items():
        source, (address, _, mount_name) = site.file_systems / name, place.partition("@")
        address, _, tls = address.partition("+")
        if source.is_dir():
            here = shelf / "lustre" if mount_name else shelf
            (here / f"{name}.address").write_text(address)
            if tls:
                (here / f"{name}.tls").touch()
            (here / f"{name}.name").write_text(mount_name)
            (here / name).mkdir()
            kernel.bind(source, here / name)


def mount_local_disks(site: Site, machine: Machine, root: Path) -> None:
    """Bind a directory of the node's disk where AWS's DLAMIs mount the disks of a type that has some."""
    if machine.local_disks:
        source = make_directory(site.disk(machine.instance_id), LOCAL_DISKS)
        kernel.bind(source, make_directory(root, _DLAMI_DISKS))


def mount_binds(root: Path, paths: Sequence[Path]) -> None:
    """Bind host paths read-only to the same paths; if there is a link, to the real path, with the link."""
    for path in sorted({path.resolve() for path in paths}):
        if not _is_shown(root, path):
            here = _make_mount_point(root, path)
            kernel.bind(path, here, read_only=True)
    for path in paths:
        here = Path(f"{root}{path}")
        if path != path.resolve() and not here.exists():
            _make_parents(root, path)
            here.symlink_to(path.resolve())


def _is_shown(root: Path, path: Path) -> bool:
    """Whether the path is already visible, through /usr or the bind of a directory above."""
    here = Path(f"{root}{path}")
    return here.exists() and here.samefile(path)


def _make_mount_point(root: Path, path: Path) -> Path:
    _make_parents(root, path)
    here = Path(f"{root}{path}")
    return make_directory(here.parent, here.name) if path.is_dir() else make_file(here)


def _make_parents(root: Path, path: Path) -> None:
    """Create the directories above `path`, open to every account (a job must reach a venv below /root)."""
    for parent in reversed(path.parents[:-1]):
        here = make_directory(root, str(parent.relative_to("/")))
        if here.stat().st_dev == root.stat().st_dev:
            here.chmod(here.stat().st_mode | 0o055)
