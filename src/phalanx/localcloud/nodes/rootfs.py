"""A node's root file system: its disk, the host's /usr read-only, the image's /etc under a writable layer.

All of it is built from outside, and the disk of a machine that starts again may hold links that lead there: what is
made on it is made without following any.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

from phalanx.localcloud import kernel
from phalanx.localcloud.nodes.machine import Machine, Site
from phalanx.localcloud.nodes.programs import EFS_ROOT, PROGRAMS

_DIRECTORIES = """
usr etc proc sys sbin dev tmp root run run/sshd run/lock run/user run/efs.host var/lib/cloud/instance/scripts
var/lib/cloud/instance/sem var/lib/cloud/scripts/per-boot var/log var/tmp
"""
# Of no use to what builds here: the machine may have put links there, to a larger disk.
_MACHINES_OWN = "home opt srv mnt media var/cache var/mail var/spool"
# On the disk; a node does not see what is beside it.
_ROOT = "root"
_LAYERS = ("layer/etc", "layer/work")
_STICKY = ("tmp", "var/tmp", "run/lock")
_PRIVATE = ("root", "run/efs.host")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# Ubuntu's systemd-tmpfiles empties /tmp at each boot, and /run is never on the disk.
_EMPTY_AT_BOOT = ("run", "tmp")
_LIBRARIES = ("bin", "lib", "lib32", "lib64", "libx32")
_QUIET = kernel.MS_NOSUID | kernel.MS_NODEV


def build(site: Site, machine: Machine) -> Path:
    """Mount the root of `machine` (in a mount namespace of its own), except `enter`'s part, and change to it.

    The node's own user namespace may have no access to its path, for example below root's home. Returns that path.
    """
    disk = site.disk(machine.instance_id)
    root = disk / _ROOT
    if root.exists():
        # Python's own rmtree ends at a thousand directories in each other. Another uid loses its rights with a program.
        subprocess.run(["rm", "-rf", *(root / name for name in _EMPTY_AT_BOOT)], check=True, user=0, group=0)
    _make_directories(disk, root)
    kernel.bind("/usr", root / "usr", read_only=True)
    _show_libraries(root)
    _mount_image(site, disk, root)
    _mount_devices(site, machine, root)
    _mount_file_systems(site, machine, root)
    _mount_binds(site, root)
    os.chdir(root)
    return root


def enter(site: Site, vcpus: int) -> None:
    """Make this directory the root of this process's mount namespace, with views of its own network and processes."""
    _mount_kernel_views(vcpus)
    if site.cgroup is not None:
        kernel.mount("cgroup2", "sys/fs/cgroup", "cgroup2", _QUIET | kernel.MS_NOEXEC | kernel.MS_RDONLY)
    # What was mounted in a namespace above can't be pivoted to.
    kernel.bind(".", ".")
    # By its name: "." is still the directory below that mount.
    kernel.pivot_root(f"../{_ROOT}")


def is_first_boot(site: Site, machine: Machine) -> bool:
    """Asked before `build`: the disk is still empty."""
    return not (site.disk(machine.instance_id) / _ROOT).exists()


def _make_directories(disk: Path, root: Path) -> None:
    for name in (_ROOT, *_LAYERS):
        _make(disk, name)
    for name in _DIRECTORIES.split():
        _make(root, name)
    for name in _MACHINES_OWN.split():
        if not (root / name).is_symlink():
            _make(root, name)
    for names, mode in ((_STICKY, 0o1777), (_PRIVATE, 0o700)):
        for name in names:
            (root / name).chmod(mode)
    _link(root / "var/run", Path("/run"))


def _make(root: Path, name: str) -> Path:
    """A directory below `root`; OSError where a link is in the way."""
    here = root
    for part in Path(name).parts:
        here /= part
        if here.is_symlink():
            raise OSError(errno.ELOOP, "a link is where the image has a directory", str(here))
        here.mkdir(exist_ok=True)
    return here


def make_file(path: Path) -> Path:
    """An empty file, or the one that is there, in a directory from `_make`."""
    if path.is_symlink():
        path.unlink()
    path.touch()
    return path


def _link(here: Path, target: Path) -> None:
    """Where a boot before this one has not done it."""
    if not here.is_symlink():
        here.symlink_to(target)


def _show_libraries(root: Path) -> None:
    """/bin, /lib …: links into /usr on a current system, directories on one that grew up without."""
    for host in (Path("/", name) for name in _LIBRARIES):
        here = root / host.name
        if host.is_symlink():
            _link(here, host.readlink())
        elif host.is_dir():
            kernel.bind(host, _make(root, host.name), read_only=True)


def _mount_image(site: Site, disk: Path, root: Path) -> None:
    """/etc writable over the image's; the host's directories of programs with the image's own laid over."""
    layers = f"upperdir={disk}/layer/etc,workdir={disk}/layer/work"
    _mount_overlay(site, root / "etc", f"{site.image}/etc", 0, layers)
    for name in PROGRAMS:
        host = Path("/", name).resolve()
        _mount_overlay(site, root / name, f"{site.image}/{name}:{host}", kernel.MS_RDONLY)


def _mount_overlay(site: Site, target: Path, lower: str, flags: int, layers: str = "") -> None:
    options = [f"lowerdir={lower}"]
    if layers:
        options.append(layers)
    if site.mode != "root":
        # overlayfs may not write its notes as trusted.* attributes in a user namespace
        options.append("userxattr")
    kernel.mount("overlay", target, "overlay", flags, ",".join(options))


def _mount_devices(site: Site, machine: Machine, root: Path) -> None:
    dev = root / "dev"
    kernel.mount("tmpfs", dev, "tmpfs", kernel.MS_NOSUID, "mode=755,size=1m,nr_inodes=1024")
    for name in _DEVICES:
        (dev / name).touch()
        kernel.mount(f"/dev/{name}", dev / name, None, kernel.MS_BIND)
    (dev / "pts").mkdir()
    (dev / "shm").mkdir()
    # group tty (5) has no number where only one id is mapped
    tty = "" if site.mode == "single" else f",gid={site.root + 5}"
    kernel.mount("devpts", dev / "pts", "devpts", kernel.MS_NOSUID, f"newinstance,ptmxmode=0666,mode=620{tty}")
    kernel.bind(site.shm(machine.instance_id), dev / "shm")
    (dev / "ptmx").symlink_to("pts/ptmx")
    (dev / "fd").symlink_to("/proc/self/fd")
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        (dev / name).symlink_to(f"/proc/self/fd/{fd}")


def _mount_kernel_views(vcpus: int) -> None:
    """/proc and /sys of the node's own namespaces; as many CPUs online as its type has."""
    kernel.mount("proc", "proc", "proc", _QUIET | kernel.MS_NOEXEC)
    kernel.mount("sysfs", "sys", "sysfs", _QUIET | kernel.MS_RDONLY)
    online = Path("run/cpus")
    online.write_text("0\n" if vcpus == 1 else f"0-{vcpus - 1}\n")
    kernel.mount(online, "sys/devices/system/cpu/online", None, kernel.MS_BIND)
    online.unlink()


def _mount_file_systems(site: Site, machine: Machine, root: Path) -> None:
    """What /sbin/mount.efs may mount lies in a directory that only root can enter; what is deleted, it won't find."""
    shelf = Path(f"{root}{EFS_ROOT}")
    (shelf / "region").write_text(machine.region)
    for source in (site.file_systems / name for name in machine.file_systems):
        if source.is_dir():
            (shelf / source.name).mkdir()
            kernel.bind(source, shelf / source.name)


def _mount_binds(site: Site, root: Path) -> None:
    """Show host paths at the same place, read-only; behind a link, at the real place and with the link."""
    for path in sorted({path.resolve() for path in site.binds}):
        if not _is_shown(root, path):
            here = _make_mount_point(root, path)
            kernel.bind(path, here, read_only=True)
    for path in site.binds:
        here = Path(f"{root}{path}")
        if path != path.resolve() and not here.exists():
            _make_parents(root, path)
            here.symlink_to(path.resolve())


def _is_shown(root: Path, path: Path) -> bool:
    """Already there, through /usr or the bind of a directory above."""
    here = Path(f"{root}{path}")
    return here.exists() and here.samefile(path)


def _make_mount_point(root: Path, path: Path) -> Path:
    _make_parents(root, path)
    here = Path(f"{root}{path}")
    return _make(here.parent, here.name) if path.is_dir() else make_file(here)


def _make_parents(root: Path, path: Path) -> None:
    """The directories above `path`, open for every account (a job must be able to walk into a venv below /root)."""
    for parent in reversed(path.parents[:-1]):
        here = _make(root, str(parent.relative_to("/")))
        if here.stat().st_dev == root.stat().st_dev:
            here.chmod(here.stat().st_mode | 0o055)
