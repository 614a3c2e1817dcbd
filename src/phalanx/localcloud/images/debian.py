"""What a Debian image is made of: packages of Debian's own AMI, and this machine's package sources."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

RELEASES = {"debian-12": "bookworm"}

# What Debian's cloud images have, without a kernel and a boot loader. As on plain AMIs, there is no MPI, no pip and no
# NFS client: a node's boot brings what it needs.
_PACKAGES = """
systemd systemd-sysv dbus udev libpam-systemd cloud-init cloud-guest-utils openssh-server python3 sudo iproute2
iputils-ping curl ca-certificates unattended-upgrades kmod procps less apt-utils
"""
_APT = Path("/etc/apt")
_MIRROR = "http://deb.debian.org/debian"
_SECURITY = "http://deb.debian.org/debian-security"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# No node may share its identity with another.
_NO_IDENTITY = 'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/hostname; : > "$1/etc/machine-id"'
_APT_CONFIG_TIMEOUT_S = 10


def command(name: str, mode: str) -> list[str]:
    """Return the mmdebstrap command that writes the image as a tar stream to its standard output."""
    release = RELEASES[name]
    return [
        "mmdebstrap",
        f"--mode={mode}",
        "--format=tar",
        "--variant=apt",
        "--components=main",
        f"--include={','.join(_PACKAGES.split())}",
        "--aptopt=APT::Install-Recommends false",
        *(f"--aptopt={line}" for line in _transport()),
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        f"--customize-hook={_NO_IDENTITY}",
        release,
        "-",
        *(sources(release) or mirror(release)),
    ]


def sources(release: str, apt: Path = _APT) -> list[str]:
    """Return the files of this machine's package sources that offer Debian's release; none if it runs another one."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    known = [path for path in files if path.suffix in (".list", ".sources") and path.is_file()]
    return [str(path) for path in known if _offers(path.read_text(errors="replace"), release)]


def _offers(text: str, release: str) -> bool:
    """Whether a file of sources, in either format, has the release's component main."""
    suite = rf"{release}(?:-updates|-security)?"
    one_line = rf"^deb\s(?:.*\s)?{suite}\s(?:.*\s)?main\b"
    suites, components = rf"^Suites:(?:.*\s)?{suite}(?:\s|$)", r"^Components:(?:.*\s)?main\b"
    if re.search(one_line, text, re.M):
        return True
    stanzas = re.split(r"\n\s*\n", text)
    enabled = [stanza for stanza in stanzas if not re.search(r"^Enabled:\s*no", stanza, re.M | re.I)]
    return any(re.search(suites, stanza, re.M) and re.search(components, stanza, re.M) for stanza in enabled)


def mirror(release: str) -> Sequence[str]:
    """Return Debian's own mirrors, for a machine that runs something else."""
    return [
        f"deb {_MIRROR} {release} main",
        f"deb {_MIRROR} {release}-updates main",
        f"deb {_SECURITY} {release}-security main",
    ]


def needs_keyring(name: str) -> bool:
    """Whether Debian's keys are missing, which a machine without sources of the release needs."""
    return not sources(RELEASES[name]) and not _KEYRING.exists()


def _transport() -> list[str]:
    """Return this machine's settings of apt that say how packages are fetched: proxies, certificates, dates."""
    show = ["apt-config", "dump", "--format", '%f "%v"%n']
    try:
        shown = subprocess.run(show, capture_output=True, text=True, timeout=_APT_CONFIG_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line for line in shown.splitlines() if line.startswith("Acquire::")]
    return [line for line in lines if not line.endswith(' ""') and "IndexTargets" not in line]
