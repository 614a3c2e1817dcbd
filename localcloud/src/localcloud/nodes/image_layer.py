"""What the local cloud adds to every image with a full operating system: its address, its EFS, its own cloud-init file.

It is a layer between the image and a node's disk, so that an image depends on no version of the local cloud.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from localcloud.nodes import cfn_programs, programs
from localcloud.nodes.machine import API_URL, DNS_ADDRESS, Site

_CLOUD_CONFIG = """\
# On one line, by which ds-identify takes it without a look at the machine.
datasource_list: [ Ec2 ]
datasource: { Ec2: { strict_id: false, timeout: 5, max_wait: 20 } }
manage_etc_hosts: true
# The local cloud has made eth0 before process 1 starts.
network: { config: disabled }
# No udev runs, which would report another interface to it.
updates: { network: { when: [ boot-new-instance ] } }
# Packages come from where those of the image came from.
apt: { preserve_sources_list: true }
locale: C.UTF-8
ssh_genkeytypes: [ ed25519 ]
"""

# Units that fail in a user namespace. The others skip themselves in containers.
_MASKED = (
    "run-rpc_pipefs.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-journald-audit.socket",
)

_FILES = {
    "etc/cloud/cloud.cfg.d/90_localcloud.cfg": _CLOUD_CONFIG,
    "etc/systemd/system.conf.d/localcloud.conf": f"[Manager]\nDefaultEnvironment=AWS_ENDPOINT_URL={API_URL}\n",
    # By default a tenth of the machine's memory for each account, beside what disks and /dev/shm may have.
    "etc/systemd/logind.conf.d/localcloud.conf": "[Login]\nRuntimeDirectorySize=16M\n",
    "etc/environment": f'AWS_ENDPOINT_URL="{API_URL}"\n',
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/resolv.conf": f"nameserver {DNS_ADDRESS}\noptions timeout:20 attempts:1\n",
    # Without its mode, and so not found: cloud-init 22.4 fails on an eth0 that exists, and waits minutes for an answer.
    "usr/sbin/dhclient": "",
}
_PROGRAMS = {f"usr/sbin/{name}": programs.PROGRAMS["sbin"][name] for name in ("mount.efs", "mount.lustre")}


def build(site: Site) -> None:
    """Build `site.layer`, whose files belong to the calling process: the nodes' root (isolation)."""
    shutil.rmtree(site.layer, ignore_errors=True)
    further = {f"etc/{name}": text for name, text in site.etc.items()}
    for name, text in {**_FILES, **further, **_PROGRAMS}.items():
        path = _beside(site.layer / name)
        path.write_text(text)
        path.chmod(0o755 if name in _PROGRAMS else 0o644)
    cfn_programs.build_mountpoint(site.layer / "usr/sbin/mount-s3")
    for source in filter(holds, site.pip_paths):
        shutil.copy(source, _beside(Path(f"{site.layer}{source}")))
    for unit in _MASKED:
        _beside(site.layer / "etc/systemd/system" / unit).symlink_to("/dev/null")


def holds(path: Path) -> bool:
    """Whether a path of pip's settings is copied into the layer: certificates, which a node's upgrades replace."""
    return path.is_relative_to("/etc") and path.is_file()


def _beside(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
