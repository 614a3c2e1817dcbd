"""Boot a node: build the machine from outside; then, as its process 1, start sshd and become the image's init."""

from __future__ import annotations

import os
import secrets
import signal
import time
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from localcloud.nodes import cgroups, image, isolation, kernel, limits, operating_system, rootfs
from localcloud.nodes.console import Console
from localcloud.nodes.machine import API_URL, Machine, Site
from localcloud.nodes.programs import READY, READY_FD
from localcloud.nodes.vpc import Vpc, configure

_MAX_FDS = 1 << 20
_EARLY = "/etc/systemd/system/sysinit.target.wants"
_CLOUD = "/var/lib/cloud/instance"


def run(site: Site, machine: Machine, vpc: Vpc, link: str, status_fd: int, console: Console) -> None:
    """Boot the node. Never returns: exits as soon as the node has a process 1, the supervisor's child by then.

    Writes the pid of process 1 to `status_fd`, in a line; process 1 then writes programs.READY, or what went wrong.
    """
    try:
        cgroups.enter(site, machine)
        _build(site, machine, vpc, link, status_fd, console)
        _start(site, machine, status_fd)
    except BaseException as problem:
        traceback.print_exc()
        os.write(status_fd, f"{type(problem).__name__}: {problem}".encode()[:4000])
    finally:
        os._exit(1)


def _build(site: Site, machine: Machine, vpc: Vpc, link: str, status_fd: int, console: Console) -> None:
    """Build the machine. Returns only in process 1 of the node."""
    _close_all_but({0, 1, 2, status_fd, console.node_end, vpc.netns})
    _redirect(console.node_end)
    kernel.unshare(kernel.CLONE_NEWNS)
    # A sysfs that is mounted in the node is then read-only too: it can't allow more than this one does.
    kernel.make_read_only("/sys")
    is_first_boot = rootfs.is_first_boot(site, machine)
    isolation.make_for_nodes(site)
    if machine.image:
        operating_system.build(site, machine, console.tty)
    else:
        rootfs.build(site, machine)
    if site.mode != "root":
        limits.limit_processes(site.most_processes)
    isolation.enter(site, partial(vpc.connect, link, machine))
    os.close(vpc.netns)
    _become_process_one(status_fd)
    (operating_system if machine.image else rootfs).enter(site, machine)
    configure(machine)
    limits.limit_files()
    if site.mode != "root":
        limits.limit_node(machine)
    kernel.sethostname(machine.hostname.partition(".")[0])
    # any account may ping, as on EC2's images
    Path("/proc/sys/net/ipv4/ping_group_range").write_text("0 0" if site.mode == "single" else "0 65534")
    if is_first_boot and not machine.image:
        _write_identity(site, machine)
    if site.mode == "single":
        kernel.ignore_identity_calls()


def _become_process_one(status_fd: int) -> None:
    """Continue in a child, which waits until its pid has been reported, or ends with this process."""
    known_r, known_w = os.pipe()
    pid = os.fork()
    if pid:
        os.write(status_fd, b"%d\n" % pid)
        os.write(known_w, b"g")
        os._exit(0)
    os.close(known_w)
    if not os.read(known_r, 1):
        os._exit(1)
    os.close(known_r)
    os.setsid()
    # Python ignores these two; the node's programs must not
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _close_all_but(keep: set[int]) -> None:
    """Close all other fds: a node that inherited the control connection would keep it open for ever."""
    low = 0
    for high in [*sorted(keep), _MAX_FDS]:
        # closerange(0, 0) closes every fd: its upper end becomes -1
        if low < high:
            os.closerange(low, high)
        low = high + 1


def _redirect(console: int) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (console, 1), (console, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(console)


def _write_identity(site: Site, machine: Machine) -> None:
    name, domain = machine.hostname.partition(".")[0], machine.dns_domain
    Path("/etc/hostname").write_text(f"{name}\n")
    Path("/etc/hosts").write_text(
        f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{machine.address} {name}.{domain} {name}\n"
    )
    with Path("/etc/resolv.conf").open("a") as resolver:
        resolver.write(f"search {domain}\n")
    Path("/etc/machine-id").write_text(f"{secrets.token_hex(16)}\n")
    _make_admins_home(site, machine)


def _make_admins_home(site: Site, machine: Machine) -> None:
    """Make the administrator's home, with the key of the instance's key pair, as cloud-init does."""
    name = machine.administrator
    if name != image.ADMIN:
        for path in (Path("/etc", file) for file in ("passwd", "group", "shadow", "gshadow")):
            path.write_text(path.read_text().replace(image.ADMIN, name))
    home = Path("/home", name)
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    keys = home / ".ssh/authorized_keys"
    keys.write_text(f"{machine.admin_key}\n" if machine.admin_key else "")
    keys.chmod(0o600)
    for path in (home, home / ".ssh", keys):
        if site.mode != "single":
            os.chown(path, 1000, 1000)


def _start(site: Site, machine: Machine, status_fd: int) -> None:
    """Become the machine's init."""
    if machine.image:
        os.write(status_fd, READY)
        operating_system.start()
    environment = {"PATH": site.path, "LANG": "C.UTF-8", "AWS_ENDPOINT_URL": API_URL}
    _start_sshd(site, environment)
    _write_user_data(machine)
    os.dup2(status_fd, READY_FD)
    # also if it had that number already
    os.set_inheritable(READY_FD, True)
    # a waiting shell needs a tenth of this process's memory, and does not have the host's environment
    os.execve("/bin/sh", ["init", "/sbin/init"], environment)


# As its unit does (Restart=on-failure, RestartPreventExitStatus=255): a killed sshd is started again. With -r it does
# not start itself anew for each login, which takes 10 ms of CPU; later versions (9.8) ignore it.
_SSHD = "until /usr/sbin/sshd -D -r{} -E /var/log/auth.log || [ $? = 255 ]; do sleep 0.1; done"
# Options count before any file. The lists are those of the policy FIPS of Red Hat and Amazon Linux (6.9).
_OF_FIPS = ["ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "rsa-sha2-256", "rsa-sha2-512"]
_KEYS_OF_FIPS = ",".join((*_OF_FIPS, *(f"{one}-cert-v01@openssh.com" for one in _OF_FIPS)))
_FIPS_OPTIONS = {
    "HostKeyAlgorithms": _KEYS_OF_FIPS,
    "PubkeyAcceptedKeyTypes": _KEYS_OF_FIPS,
    "CASignatureAlgorithms": ",".join(_OF_FIPS),
    "KexAlgorithms": "ecdh-sha2-nistp256,ecdh-sha2-nistp384,ecdh-sha2-nistp521,diffie-hellman-group14-sha256",
}


def _start_sshd(site: Site, environment: Mapping[str, str]) -> None:
    """In a child, start early services, generate the host key as cloud-init does at the first boot, and keep sshd."""
    if os.fork():
        return
    options = "".join(f" -o {name}={value}" for name, value in _FIPS_OPTIONS.items()) if site.is_fips else ""
    try:
        for unit in sorted(Path(_EARLY).glob("*.service")):
            os.waitpid(os.posix_spawn("/sbin/service", ["service", str(unit)], environment), 0)
        path = image.host_key(site)
        if not Path(path).exists():
            kind = "ecdsa" if site.is_fips else "ed25519"
            keygen = ["/usr/bin/ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", path]
            os.waitpid(os.posix_spawn(keygen[0], keygen, environment), 0)
        os.execve("/bin/sh", ["sh", "-c", _SSHD.format(options)], dict(environment))
    except OSError as problem:
        _log(f"sshd can't be started: {problem}")
    finally:
        os._exit(127)


def _write_user_data(machine: Machine) -> None:
    _write_private(f"{_CLOUD}/user-data.txt", machine.user_data, 0o600)
    _write_private(f"{_CLOUD}/../data/instance-id", f"{machine.instance_id}\n".encode(), 0o644)
    for name, text in machine.scripts.items():
        _write_private(f"{_CLOUD}/{name}", text.encode("utf-8", "surrogateescape"), 0o700)


def _write_private(path: str, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _log(text: str) -> None:
    """Write a line to the console log, with the seconds since boot in a kernel's format."""
    os.write(1, f"[{time.monotonic():12.6f}] {text}\n".encode())
