"""What images are made of: each distribution's packages, and where they come from."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

# What the distributions' cloud images have, without a kernel and a boot loader. As on plain AMIs, there is no MPI, no
# pip and no NFS client: a node's boot brings what it needs.
_PACKAGES = """
systemd systemd-sysv dbus udev libpam-systemd cloud-init cloud-guest-utils openssh-server python3 sudo iproute2
iputils-ping curl ca-certificates unattended-upgrades kmod procps less apt-utils
"""
_APT = Path("/etc/apt")
_DEBIAN_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# F6EC B376 2474 EDA9 D21B 7022 8719 20D1 991B C93C, of Ubuntu's package ubuntu-keyring 2023.11.28.1: Debian has none.
_UBUNTU_KEY = Path(__file__).with_name("ubuntu-archive.asc")
# No node may share its identity with another.
_NO_IDENTITY = 'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/hostname; : > "$1/etc/machine-id"'
_APT_CONFIG_TIMEOUT_S = 10


@dataclass(frozen=True)
class Distribution:
    """A release of a distribution: its name in package sources, its mirrors (URL, suffixes of suites), and its keys.

    `ami` is its id in the local cloud's EC2. `administrator` is the default user of the distribution's own AMIs.
    """

    release: str
    ami: str
    administrator: str
    keys: Path
    mirrors: tuple[tuple[str, str], ...]
    components: str = "main"
    packages: str = ""


def _debian(release: str, ami: str, packages: str = "") -> Distribution:
    mirrors = (("http://deb.debian.org/debian", " -updates"), ("http://deb.debian.org/debian-security", "-security"))
    # The user: https://wiki.debian.org/Cloud/AmazonEC2Image/Bookworm
    return Distribution(release, ami, "admin", _DEBIAN_KEYS, mirrors, packages=packages)


def _ubuntu(release: str, ami: str, packages: str = "") -> Distribution:
    mirrors = (("http://archive.ubuntu.com/ubuntu", " -updates -security"),)
    # As on Ubuntu's AMIs: needrestart restarts services after an installation of packages. Without locales, cloud-init
    # installs it at each first boot, for a minute.
    packages = f"locales needrestart ubuntu-keyring {packages}"
    return Distribution(release, ami, "ubuntu", _UBUNTU_KEY, mirrors, "main universe", packages)


# As on their AMIs, /sbin is /usr/sbin; later releases need no package for that.
DISTRIBUTIONS = {
    "debian-11": _debian("bullseye", "ami-0fa1a9c0de000de11", "usrmerge"),
    "debian-12": _debian("bookworm", "ami-0fa1a9c0de000de12"),
    "ubuntu-22.04": _ubuntu("jammy", "ami-0fa1a9c0de0b22004", "usrmerge"),
    "ubuntu-24.04": _ubuntu("noble", "ami-0fa1a9c0de0b24004"),
}


def command(name: str, mode: str) -> list[str]:
    """Return the mmdebstrap command that writes the image as a tar stream to its standard output.

    Package sources that are not files of this machine are expected on its standard input (`mirrors`).
    """
    distribution = DISTRIBUTIONS[name]
    return [
        "mmdebstrap",
        f"--mode={mode}",
        "--format=tar",
        "--variant=apt",
        f"--include={','.join(f'{_PACKAGES} {distribution.packages}'.split())}",
        "--aptopt=APT::Install-Recommends false",
        *(f"--aptopt={line}" for line in _transport()),
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        f"--customize-hook={_default_user(distribution.administrator)}",
        f"--customize-hook={_NO_IDENTITY}",
        distribution.release,
        "-",
        *(sources(distribution) or ["-"]),
    ]


def _default_user(name: str) -> str:
    """Return a shell command that names the administrator, as cloud-init's own file in `$1` may not."""
    text = f"""system_info:
  default_user:
    name: {name}
    gecos: {name.title()}
    groups: [ adm, sudo ]
    sudo: [ "ALL=(ALL) NOPASSWD:ALL" ]
    shell: /bin/bash
"""
    return f'printf %s {shlex.quote(text)} > "$1/etc/cloud/cloud.cfg.d/50_default_user.cfg"'


def sources(distribution: Distribution, apt: Path = _APT) -> list[str]:
    """Return the files of this machine's package sources that offer the release; none if it runs another one."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    known = [path for path in files if path.suffix in (".list", ".sources") and path.is_file()]
    return [str(path) for path in known if _offers(path.read_text(errors="replace"), distribution.release)]


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


def mirrors(distribution: Distribution) -> str:
    """Return the distribution's own mirrors as package sources (deb822), for a machine that runs something else."""
    stanzas = []
    for url, suffixes in distribution.mirrors:
        suites = " ".join(distribution.release + suffix for suffix in suffixes.split(" "))
        lines = ["Types: deb", f"URIs: {url}", f"Suites: {suites}", f"Components: {distribution.components}"]
        stanzas.append("\n".join([*lines, f"Signed-By:{_signed_by(distribution.keys)}"]) + "\n")
    return "\n".join(stanzas)


def _signed_by(keys: Path) -> str:
    """Return the path of installed keys, which the image has, too; or the key itself, which apt reads since 2.4."""
    if keys.suffix != ".asc":
        return f" {keys}"
    return "".join(f"\n {line or '.'}" for line in keys.read_text().splitlines())


def needs_keyring(distribution: Distribution) -> bool:
    """Whether Debian's keys are missing, which a machine without sources of the release needs."""
    return not sources(distribution) and not distribution.keys.exists()


def _transport() -> list[str]:
    """Return this machine's settings of apt that say how packages are fetched: proxies, certificates, dates."""
    show = ["apt-config", "dump", "--format", '%f "%v"%n']
    try:
        shown = subprocess.run(show, capture_output=True, text=True, timeout=_APT_CONFIG_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line for line in shown.splitlines() if line.startswith("Acquire::")]
    return [line for line in lines if not line.endswith(' ""') and "IndexTargets" not in line]
