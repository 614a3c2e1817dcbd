"""Check what this machine supports: try to build a node in each mode, and show how to install what is missing."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from localcloud.network import ruleset
from localcloud.network.records import Network
from localcloud.nodes import cfn_programs, exports, isolation, kernel, packet_filter, rootfs, userns
from localcloud.nodes.machine import Machine, Site
from localcloud.nodes.programs import PROGRAMS
from localcloud.nodes.volumes import Pool
from localcloud.nodes.vpc import Vpc, configure

_TRIAL_TIMEOUT_S = 10
# mount_setattr(2), with which the host's files are made read-only in nodes
_MIN_LINUX = (5, 12)
_PROGRAMS = (
    ("/usr/sbin/sshd", "openssh-server"),
    ("/usr/bin/ssh", "openssh-client"),
    ("/usr/bin/ssh-keygen", "openssh-client"),
    ("/usr/bin/setpriv", "util-linux"),
)
OPEN_NETWORKS = "Networks are open"
_FILTER_MODULES = "nf_tables nf_conntrack br_netfilter"
_SYSCTL = Path("/proc/sys")


@dataclass(frozen=True)
class Missing:
    """Something that is missing, and the command that fixes it."""

    what: str
    fix: str


@dataclass(frozen=True)
class Verdict:
    """`mode` is the mode to use, "" if `ok` is false; `missing` explains why a better mode does not work."""

    ok: bool
    mode: str
    missing: tuple[Missing, ...]


def main(arguments: Sequence[str] = ()) -> int:
    """Print the verdict as JSON; return 0 if the local cloud can run here, otherwise 1."""
    parser = argparse.ArgumentParser(prog="python -m localcloud probe")
    parser.add_argument("--mode", choices=("auto", *userns.MODES), default="auto")
    verdict = find_mode(parser.parse_args(arguments).mode)
    sys.stdout.write(json.dumps(dataclasses.asdict(verdict)) + "\n")
    return 0 if verdict.ok else 1


def find_mode(wanted: str = "auto") -> Verdict:
    """Try `wanted`; "auto" is range, or else single (root must be requested)."""
    if missing := _missing_basics():
        return Verdict(False, "", missing)
    if wanted != "auto":
        problem = try_mode(wanted)
        return Verdict(False, "", (problem,)) if problem else Verdict(True, wanted, ())
    no_range = try_mode("range")
    if no_range is None:
        return Verdict(True, "range", ())
    no_single = try_mode("single")
    if no_single is None:
        return Verdict(True, "single", (_unseparated(no_range),))
    return Verdict(False, "", (no_single,))


def _unseparated(no_range: Missing) -> Missing:
    return Missing(f"All users of a node are one there, with uid 0, so jobs run as root: {no_range.what}", no_range.fix)


def _missing_basics() -> tuple[Missing, ...]:
    if sys.platform != "linux":
        what = f"The local cloud's nodes are Linux namespaces, and this is {platform.system()}."
        return (Missing(what, "Run it in a Linux virtual machine (limactl start; multipass launch), or use AWS."),)
    if too_old := linux_before(_MIN_LINUX, "The local cloud"):
        return (too_old,)
    return tuple(
        Missing(f"{program} is not installed.", f"sudo apt-get install -y {package}")
        for program, package in _PROGRAMS
        if not os.access(program, os.X_OK)
    )


def linux_before(version: tuple[int, int], user: str) -> Missing | None:
    """Return what is missing if this machine's Linux is older than the version that `user` needs."""
    release = platform.release()
    if _version(release) >= version:
        return None
    what = f"{user} needs Linux {version[0]}.{version[1]} or newer; this is {release}."
    return Missing(what, "sudo apt-get dist-upgrade && sudo reboot")


def _version(release: str) -> tuple[int, int]:
    major, minor, *_rest = [*release.split("."), "0"]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def try_mode(mode: str) -> Missing | None:
    """Build a node's namespaces, network and root file system in a child; return None if all of it worked."""
    if mode == "root" and os.geteuid() != 0:
        what = f"The mode root creates no user namespace, so it needs root; this is {userns.user_name()}."
        return Missing(what, "Choose no mode: the local cloud then finds out what an ordinary user can use.")
    with tempfile.TemporaryDirectory(prefix="localcloud-probe-") as scratch:
        try:
            failure = _run_trial(mode, Path(scratch).resolve())
        except userns.NamespaceError as problem:
            failure = (problem.step, problem.code, problem.detail)
    return diagnose(*failure, _host()) if failure else None


def try_filter(mode: str) -> Missing | None:
    """Load a packet filter into a network of its own in a child; None when that worked."""
    said_r, said_w = os.pipe()
    pid = userns.spawn(mode, lambda: _filter_trial(said_w))
    os.close(said_w)
    with os.fdopen(said_r) as said:
        reason = said.read()
    os.waitpid(pid, 0)
    return open_networks(reason) if reason else None


def open_networks(reason: str) -> Missing:
    """Return what it means that packets can't be filtered, for this reason."""
    what = f"{OPEN_NETWORKS}: security groups, routes and gateways decide nothing ({reason})."
    fix = "apt-get install -y nftables" if "not installed" in reason else f"modprobe -a {_FILTER_MODULES}"
    return Missing(what, f"sudo {fix}")


def _filter_trial(said_w: int) -> int:
    """In the child, whose end closes the pipe."""
    signal.alarm(_TRIAL_TIMEOUT_S)
    try:
        kernel.unshare(kernel.CLONE_NEWNET)
        packet_filter.load(ruleset.text(Network({}, (), ())))
    except OSError as problem:
        os.write(said_w, str(problem).encode())
    return 0


def _run_trial(mode: str, scratch: Path) -> tuple[str, int, str] | None:
    """Return (step, errno, message) of what failed."""
    result_r, result_w = os.pipe()
    pid = userns.spawn(mode, lambda: _trial(mode, scratch, result_w))
    os.close(result_w)
    with os.fdopen(result_r) as result:
        text = result.read()
    os.waitpid(pid, 0)
    if text == "ok":
        return None
    step, code, message = json.loads(text) if text else ("trial", 0, "it ended without a report")
    return step, code, message


def _trial(mode: str, scratch: Path, result_w: int) -> int:
    """Run in the child. The alarm is the deadline: it ends the child, which closes the pipe."""
    signal.alarm(_TRIAL_TIMEOUT_S)
    try:
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC)
        kernel.unshare(kernel.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            kernel.die_with_parent()
            os._exit(_build(mode, scratch, result_w))
        os.waitpid(pid, 0)
    except OSError as problem:
        _report(result_w, problem)
    return 0


def _build(mode: str, scratch: Path, result_w: int) -> int:
    """Do, as process 1 of a pid namespace, what the supervisor and a node's init do first."""
    try:
        kernel.mount(None, "/", None, kernel.MS_PRIVATE | kernel.MS_REC)
        kernel.mount("proc", "/proc", "proc")
        site = Site(scratch, mode, (), (), userns.root_of_nodes(mode))
        machine = Machine(
            instance_id="i-probe",
            vpc_id="vpc-probe",
            vpc_cidr="10.0.0.0/16",
            address="10.0.0.4",
            hostname="probe",
            instance_type="",
            vcpus=1,
            memory_mib=1,
            user_data=b"",
            domain="",
            zone="",
            file_systems={},
        )
        for directory in ("etc", cfn_programs.ROOT, *PROGRAMS):
            (site.image / directory).mkdir(parents=True)
        Pool(1 << 20, "755", site.root).mount(site.disk(machine.instance_id))
        Pool(1 << 20, "1777", site.root).mount(site.shm(machine.instance_id))
        exports.make(site, machine)
        vpc = Vpc()
        vpc.serve(machine.vpc_cidr)
        isolation.make_for_nodes(site)
        rootfs.build(site, machine)
        isolation.enter(site, partial(vpc.connect, "probe", machine))
        pid = os.fork()
        if pid == 0:
            os._exit(_enter(site, machine, result_w))
        os.waitpid(pid, 0)
    except OSError as problem:
        _report(result_w, problem)
    except Exception:
        os.write(result_w, json.dumps(["trial", 0, traceback.format_exc()[-2000:]]).encode())
    return 0


def _enter(site: Site, machine: Machine, result_w: int) -> int:
    """Finish the node, as its process 1."""
    try:
        rootfs.enter(site, machine)
        configure(machine)
        os.write(result_w, b"ok")
    except OSError as problem:
        _report(result_w, problem)
    return 0


def _report(result_w: int, problem: OSError) -> None:
    step = str(problem.filename or problem.strerror or problem)
    os.write(result_w, json.dumps([step, problem.errno or 0, problem.strerror or ""]).encode())


@dataclass(frozen=True)
class Host:
    """The facts of this machine on which the diagnosis of a failure depends."""

    user: str
    root: bool
    restricted_by_apparmor: bool
    clone_forbidden: bool
    max_user_namespaces: int
    has_newuidmap: bool
    python: str


def _host() -> Host:
    return Host(
        user=userns.user_name(),
        root=os.geteuid() == 0,
        restricted_by_apparmor=_sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1",
        clone_forbidden=_sysctl("kernel/unprivileged_userns_clone") == "0",
        max_user_namespaces=int(_sysctl("user/max_user_namespaces") or "-1"),
        has_newuidmap=bool(shutil.which("newuidmap") and shutil.which("newgidmap")),
        python=str(Path(sys.executable).resolve()),
    )


def _sysctl(name: str) -> str:
    try:
        return (_SYSCTL / name).read_text().strip()
    except OSError:
        return ""


def diagnose(step: str, code: int, message: str, host: Host) -> Missing:
    """Return what a failed step means on this host, and the command that fixes it."""
    if step in ("newuidmap", "newgidmap", "subordinate ids"):
        return _no_range(step, message, host)
    if code == errno.ENOSPC and step == "unshare":
        what = f"The limit of user namespaces (user.max_user_namespaces = {host.max_user_namespaces}) is reached."
        return Missing(what, "sudo sysctl -w user.max_user_namespaces=65536")
    if code in (errno.EPERM, errno.EACCES):
        return _forbidden(step, message, host)
    if code in (errno.EOPNOTSUPP, errno.ENODEV) or (code == errno.ENOENT and step.startswith("rtnetlink")):
        modules = "bridge veth overlay sch_ingress cls_bpf"
        return Missing(f"The kernel lacks a module: {step}: {message}.", f"sudo modprobe -a {modules}")
    return Missing(f"Building a node failed at {step}: {message}.", "Please report this as a bug of localcloud.")


def _no_range(step: str, message: str, host: Host) -> Missing:
    if not host.has_newuidmap:
        return Missing("newuidmap is not installed.", "sudo apt-get install -y uidmap")
    if step == "subordinate ids":
        ranges = "--add-subuids 100000-165535 --add-subgids 100000-165535"
        return Missing(f"{host.user} has no subordinate ids: {message}.", f"sudo usermod {ranges} {host.user}")
    return Missing(f"{step} failed: {message}.", "sudo apt-get install -y --reinstall uidmap")


def _forbidden(step: str, message: str, host: Host) -> Missing:
    if host.restricted_by_apparmor and not host.root:
        what = "AppArmor forbids user namespaces to ordinary users (Ubuntu's default since 23.10)."
        profile = f"profile localcloud {host.python} flags=(unconfined) {{ userns, }}"
        fix = (
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0   (until the next boot; or, for this Python "
            f"only: printf 'abi <abi/4.0>,\\n{profile}\\n' | sudo tee /etc/apparmor.d/localcloud && "
            "sudo apparmor_parser -r /etc/apparmor.d/localcloud)"
        )
        return Missing(what, fix)
    if host.clone_forbidden and not host.root:
        what = "User namespaces are switched off for ordinary users."
        return Missing(what, "sudo sysctl -w kernel.unprivileged_userns_clone=1")
    what = f"Namespaces are forbidden here, as in most containers: {step}: {message}."
    return Missing(what, "docker run --privileged …  (or run it outside of the container)")
