"""The machine image: an /etc and programs, built once per local cloud, below every node's own overlay."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from localcloud.nodes import cfn_programs, image_layer, kernel, programs
from localcloud.nodes.machine import API_URL, DNS_ADDRESS, Site

# Only what programs under /usr need of the host's /etc, never its secrets, accounts or network.
_FROM_HOST = """
adduser.conf alternatives bash.bashrc bash_completion.d ca-certificates ca-certificates.conf debconf.conf
debian_version deluser.conf ethertypes fonts gai.conf host.conf inputrc java-11-openjdk java-17-openjdk
java-21-openjdk ld.so.cache ld.so.conf ld.so.conf.d libaudit.conf libibverbs.d libnl-3 locale.alias localtime
login.defs lsb-release magic magic.mime manpath.config mime.types mke2fs.conf mtab nanorc netconfig networks
openmpi os-release pam.conf pam.d perl profile protocols python3 python3.10 python3.11 python3.12 python3.13 rpc
security services shells skel terminfo timezone vim default/locale default/useradd ssh/moduli ssl/certs
ssl/openssl.cnf
"""

ADMIN = "ubuntu"
_SUDO_GID = 27

_SSHD_CONFIG = """\
# Drop-ins first: of most keywords, and of SetEnv lines, only the first counts.
Include /etc/ssh/sshd_config.d/*.conf
HostKey {host_key}
PidFile /run/sshd.pid
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
# 0.2 CPU-seconds for each connection, on links that never leave this machine
KexAlgorithms -sntrup*
# PAM's account step fails where only one uid is mapped.
UsePAM no
PermitRootLogin prohibit-password
PermitUserEnvironment no
AllowAgentForwarding yes
X11Forwarding no
PrintMotd no
PrintLastLog no
UseDNS no
MaxStartups 1000:30:2000
{per_source}LoginGraceTime 60
Subsystem sftp internal-sftp
SetEnv PATH={path} AWS_ENDPOINT_URL={api}
"""


def mount(site: Site) -> None:
    """Keep `site.image` in memory: ext4 takes up to half a second for its links while many files are newly deleted."""
    site.image.mkdir()
    options = f"mode=755,uid={site.root},gid={site.root},size=256m"
    kernel.mount("tmpfs", site.image, "tmpfs", kernel.MS_NODEV, options)


def build(site: Site) -> None:
    """Build `site.image` (30 ms). Its files belong to the calling process: the nodes' root (isolation)."""
    _build_etc(site)
    _build_programs(site.image)
    cfn_programs.build(site.image)
    cfn_programs.build_mountpoint(site.image / "usr/local/sbin/mount-s3")
    if site.is_fips:
        keygen = site.image / "usr/local/sbin/ssh-keygen"
        keygen.write_text(programs.SSH_KEYGEN_IN_FIPS)
        keygen.chmod(0o755)
    if site.mode != "single":
        _install_sudo_helper(site)
    image_layer.build(site)


def _build_etc(site: Site) -> None:
    etc = site.image / "etc"
    for name in ("ssh/sshd_config.d", "ssh/ssh_config.d", "profile.d", "opt"):
        (etc / name).mkdir(parents=True)
    for name in _FROM_HOST.split():
        _copy(Path("/etc", name), etc / name)
    for name, text in {**_own_files(site), **site.etc}.items():
        (etc / name).parent.mkdir(parents=True, exist_ok=True)
        (etc / name).write_text(text)
    for name in ("shadow", "gshadow"):
        (etc / name).chmod(0o640)


def _build_programs(image: Path) -> None:
    for directory, texts in {**programs.PROGRAMS, **programs.PROGRAMS_FOR_GPUS}.items():
        (image / directory).mkdir(parents=True)
        for name, text in texts.items():
            (image / directory / name).write_text(text)
            (image / directory / name).chmod(0o755)


def _install_sudo_helper(site: Site) -> None:
    """Install a setuid program. Its mode is the whole check: only the group sudo can execute it."""
    program = Path(f"{site.image}{programs.SETPRIV}")
    shutil.copy("/usr/bin/setpriv", program)
    os.chown(program, site.root, site.root + _SUDO_GID)
    program.chmod(0o4750)


def _copy(source: Path, target: Path) -> None:
    """Copy what can be read, and leave out the rest (an image contains no secrets of its builder)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore_dangling_symlinks=True)
        elif source.is_file():
            shutil.copy(source, target)
    except (OSError, shutil.Error):
        # copytree copies all it can before it raises
        return


def _own_files(site: Site) -> dict[str, str]:
    accounts = _single_accounts() if site.mode == "single" else _accounts()
    return {
        **accounts,
        "environment": f'PATH="{site.path}"\nAWS_ENDPOINT_URL="{API_URL}"\n',
        "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\ngshadow: files\nhosts: files dns\n",
        "resolv.conf": f"nameserver {DNS_ADDRESS}\noptions timeout:20 attempts:1\n",
        "fstab": "",
        "ssh/sshd_config": _SSHD_CONFIG.format(
            path=site.path, api=API_URL, per_source=_per_source(), host_key=host_key(site)
        ),
        "ssh/ssh_config": "Include /etc/ssh/ssh_config.d/*.conf\nHost *\n    HashKnownHosts no\n",
    }


def host_key(site: Site) -> str:
    """Return the path of the key that a node's first boot makes for its sshd."""
    return f"/etc/ssh/ssh_host_{'ecdsa' if site.is_fips else 'ed25519'}_key"


def _per_source() -> str:
    """Return how many logins one address may leave unfinished, if this machine's sshd knows it: others end at it."""
    version = subprocess.run(["/usr/sbin/sshd", "-V"], capture_output=True, text=True, check=False).stderr
    known = re.search(r"^OpenSSH_(\d+)\.(\d+)", version, re.MULTILINE)
    return "PerSourceMaxStartups 100\n" if known and (int(known[1]), int(known[2])) >= (8, 5) else ""


def _accounts() -> dict[str, str]:
    users = (
        ("root", 0, 0, "/root", "/bin/bash"),
        ("daemon", 1, 1, "/usr/sbin", "/usr/sbin/nologin"),
        ("sshd", 100, 65534, "/run/sshd", "/usr/sbin/nologin"),
        (ADMIN, 1000, 1000, f"/home/{ADMIN}", "/bin/bash"),
        ("nobody", 65534, 65534, "/nonexistent", "/usr/sbin/nologin"),
    )
    groups = (
        ("root", 0, ""), ("daemon", 1, ""), ("adm", 4, ADMIN), ("tty", 5, ""), ("sudo", _SUDO_GID, ADMIN),
        ("shadow", 42, ""), ("utmp", 43, ""), ("mail", 8, ""), ("users", 100, ""), (ADMIN, 1000, ""),
        ("nogroup", 65534, ""),
    )  # fmt: skip
    return _account_files(users, groups)


def _single_accounts() -> dict[str, str]:
    """Return accounts that all are uid 0 and gid 0, the only ids. Without a group tty, which sshd would try to use."""
    users = (
        ("root", 0, 0, "/root", "/bin/bash"),
        ("sshd", 0, 0, "/run/sshd", "/usr/sbin/nologin"),
        (ADMIN, 0, 0, f"/home/{ADMIN}", "/bin/bash"),
    )
    return _account_files(users, (("root", 0, ""), (ADMIN, 0, "")))


def _account_files(
    users: Iterable[tuple[str, int, int, str, str]], groups: Iterable[tuple[str, int, str]]
) -> dict[str, str]:
    users, groups = list(users), list(groups)
    return {
        "passwd": "".join(f"{name}:x:{uid}:{gid}:{name}:{home}:{shell}\n" for name, uid, gid, home, shell in users),
        # "*" and not "!": sshd takes "!" for a locked account and refuses its keys
        "shadow": "".join(f"{user[0]}:*:19000:0:99999:7:::\n" for user in users),
        "group": "".join(f"{name}:x:{gid}:{members}\n" for name, gid, members in groups),
        "gshadow": "".join(f"{name}:*::{members}\n" for name, _gid, members in groups),
    }
