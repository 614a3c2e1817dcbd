"""A root with the names, paths and versions that Amazon Linux 2023 documents, and nothing else of Debian's.

Its own programs are in no registry here, so this machine's play them under their names. What differs is checked:
`dnf` and `yum` know the packages that phalanx asks for, `sudo` has Amazon Linux's secure_path, `systemctl` its units,
`sshd -V` is 8.7's, and python3 is 3.9. Sources: docs/aws-behaviour.md 5.12, 5.14, 4.1, 4.7, 4.9, 5.21, 7.1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

# Of the packages bash, coreutils, util-linux, sed, gawk, grep, findutils, procps-ng, iproute, hostname, glibc-common,
# openssh-server, openssh-clients and shadow-utils. Neither cron, nor apt, dpkg, adduser, netcat, rsync or MPI.
_BIN = """bash sh cat chmod chown cp cut date dd df dirname env expr false head id install ln ls mkdir mktemp mv nproc
od printf pwd readlink rm rmdir seq sha256sum sleep sort stat stty sync tail tee timeout touch tr true uname uniq wc
whoami basename base64 echo test lsblk mount umount mountpoint findmnt flock setsid setpriv logger getopt sed awk gawk
grep find xargs ps pgrep pkill free hostname getent ssh ssh-keygen ssh-add ssh-agent scp kill gzip tar curl"""
_SBIN = "sshd ip nologin"
_DIRECTORIES = """usr/bin usr/sbin usr/lib usr/lib64 usr/libexec/openssh usr/share/empty.sshd etc/ssh/sshd_config.d dev
proc sys tmp run/systemd/system run/sshd var/log srv/shared root opt/aws/bin home/ec2-user home/hadoop"""
_PASSWD = """root:x:0:0:root:/root:/bin/bash
bin:x:1:1:bin:/bin:/sbin/nologin
sshd:x:74:74:Privilege-separated SSH:/usr/share/empty.sshd:/sbin/nologin
nobody:x:65534:65534:Kernel Overflow User:/:/sbin/nologin
ec2-user:x:1000:1000:EC2 Default User:/home/ec2-user:/bin/bash
"""
_HADOOP = "hadoop:x:992:992::/home/hadoop:/bin/bash\n"
_GROUP = "root:x:0:\nwheel:x:10:ec2-user\nadm:x:4:ec2-user\nec2-user:x:1000:\nhadoop:x:992:\nsshd:x:74:\n"
_OS = 'NAME="Amazon Linux"\nVERSION="2023"\nID="amzn"\nID_LIKE="fedora"\nVERSION_ID="2023"\n'
_SSHD = """Include /etc/ssh/sshd_config.d/*.conf
AuthorizedKeysFile .ssh/authorized_keys
AuthorizedKeysCommand /opt/aws/bin/eic_run_authorized_keys %u %f
AuthorizedKeysCommandUser ec2-instance-connect
Subsystem sftp /usr/libexec/openssh/sftp-server
"""
_RED_HAT = "SyslogFacility AUTHPRIV\nPasswordAuthentication no\nUsePAM no\nX11Forwarding yes\nPrintMotd no\n"
_SUDO = """#!/bin/bash
# NOPASSWD:ALL for ec2-user and hadoop, and Defaults secure_path
while [[ $1 = -* ]]; do shift; done
export PATH=/sbin:/bin:/usr/sbin:/usr/bin
type -P "$1" > /dev/null || { echo "sudo: $1: command not found" >&2; exit 1; }
exec "$@"
"""
_DNF = """#!/bin/bash
# dnf 4.14, which yum links to
echo "$*" >> /var/log/dnf
names=()
while [ $# -gt 0 ]; do
  case $1 in
    -q | -y | --setopt=install_weak_deps=False) ;;
    -*) echo "dnf: error: unrecognized arguments: $1" >&2; exit 2 ;;
    *) names+=("$1") ;;
  esac
  shift
done
[ "${names[0]}" = install ] || { echo "No such command: ${names[0]}" >&2; exit 1; }
for name in "${names[@]:1}"; do
  case $name in
    amazon-efs-utils) made=/usr/sbin/mount.efs ;;
    lustre-client) made=/usr/sbin/mount.lustre ;;
    mount-s3) made=/usr/bin/mount-s3 ;;
    *) echo "No match for argument: $name" >&2; echo "Error: Unable to find a match: $name" >&2; exit 1 ;;
  esac
  cp /usr/libexec/mounts-here $made
done
"""
# For `mount -t nfs4 SOURCE DIRECTORY -o OPTIONS`, as mount(8) calls it: a bind of a directory of this root's.
_MOUNTS = '#!/bin/bash\nprintf "%s\\n" "$*" >> /var/log/mounts\nexec mount -i --bind /srv/shared "$2"\n'
_SYSTEMCTL = """#!/bin/bash
echo "$*" >> /var/log/systemctl
case $1 in daemon-reload | enable | restart | disable | start) ;; *) echo "Unknown command verb $1." >&2; exit 1 ;; esac
"""
_SSHD_87 = """#!/bin/bash
if [ "$1" = -V ]; then
  echo 'unknown option -- V' >&2
  echo 'OpenSSH_8.7p1, OpenSSL 3.0.8 7 Feb 2023' >&2
  exit 1
fi
exec -a /usr/sbin/sshd /usr/libexec/sshd-here "$@"
"""
ENTER = """
set -e
root=$1; shift
for directory in usr/lib dev proc; do mount --rbind "/$directory" "$root/$directory"; done
[ ! -d /usr/lib64 ] || mount --rbind /usr/lib64 "$root/usr/lib64"
mount --bind "$1" "$root$1"; shift
mount -t sysfs sysfs "$root/sys"
ip link set lo up
exec chroot "$root" "$@"
"""


def python_3_9() -> Path | None:
    """Return the directory of a Python 3.9 on this machine; None if there is none."""
    programs = (Path("/usr/bin/python3.9"), *Path.home().glob(".pyenv/versions/3.9*/bin/python3.9"))
    return next((program.resolve().parents[1] for program in programs if program.exists()), None)


def make(root: Path, *, emr: bool = False) -> None:
    """Make the root of a plain AMI, or of a node of EMR."""
    for directory in _DIRECTORIES.split():
        (root / directory).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for names, place in ((_BIN, "bin"), (_SBIN, "sbin")):
        for name in names.split():
            if found := shutil.which(name, path="/usr/bin:/usr/sbin:/bin:/sbin"):
                shutil.copy(found, root / "usr" / place / name)
    (root / "usr/sbin/sshd").rename(root / "usr/libexec/sshd-here")
    python = python_3_9()
    assert python
    (root / "usr/bin/python3").symlink_to(python / "bin/python3.9")
    (root / str(python).lstrip("/")).mkdir(parents=True)
    texts = {
        "usr/bin/sudo": _SUDO,
        "usr/bin/dnf": _DNF,
        "usr/bin/yum": _DNF,
        "usr/bin/systemctl": _SYSTEMCTL,
        "usr/sbin/sshd": _SSHD_87,
        "usr/libexec/mounts-here": _MOUNTS,
        # nfs-utils and initscripts are on the AMI.
        "usr/sbin/mount.nfs4": _MOUNTS,
        "etc/passwd": _PASSWD + (_HADOOP if emr else ""),
        "etc/group": _GROUP,
        "etc/shadow": "root:*:19000::::::\n",
        "etc/os-release": _OS,
        "etc/hosts": "127.0.0.1 localhost localhost.localdomain localhost4 localhost4.localdomain4\n",
        "etc/fstab": "",
        "etc/bashrc": "",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "etc/ssh/sshd_config": _SSHD,
        "etc/ssh/sshd_config.d/50-redhat.conf": _RED_HAT,
        "etc/ssh/ssh_config": "Include /etc/ssh/ssh_config.d/*.conf\n",
    }
    for path, text in texts.items():
        (root / path).write_text(text)
        (root / path).chmod(0o755 if path.startswith("usr/") else 0o600 if path == "etc/shadow" else 0o644)
    (root / "tmp").chmod(0o1777)


def run(root: Path, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program in the root, in namespaces of its own: its mounts, rules and processes end with it."""
    own = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "bash", "-c", ENTER, "bash", str(root)]
    return subprocess.run(
        [*own, str(python_3_9()), *words],
        input=text,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def may_enter() -> bool:
    """Whether this machine can: it takes root, and a Python 3.9."""
    if os.geteuid() or not python_3_9():
        return False
    return not subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True
    ).returncode
