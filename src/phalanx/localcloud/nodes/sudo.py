"""sudo for the image's administrator: a copy of the host's, since the host's root is nobody on a node."""

from __future__ import annotations

import shutil
from pathlib import Path

_HOST_SUDO = Path("/usr/bin/sudo")
_HOST_PLUGINS = (Path("/usr/libexec/sudo/sudoers.so"), Path("/usr/lib/sudo/sudoers.so"))
_PROGRAM = "usr/local/sbin/sudo"
_PLUGIN = "sudo/sudoers.so"

_SUDOERS = """\
Defaults env_reset, !syslog, secure_path="{path}"
root ALL=(ALL:ALL) ALL
@includedir /etc/sudoers.d
"""
_ALLOW = "{admin} ALL=(ALL) NOPASSWD:ALL\n"
# who is allowed is sudoers' business; host names and accounts are all local
_PAM = "auth required pam_permit.so\naccount required pam_permit.so\nsession required pam_permit.so\n"
# sudo(8) wants to be another user for a moment, which one uid alone can't
_FOR_ONE_UID = """\
#!/bin/sh
# Every account is root on this node: just run the command.
while [ $# -gt 0 ]; do
  case $1 in
    -u|-g) shift 2 ;;
    -*) shift ;;
    *=*) export "$1"; shift ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || set -- /bin/bash
exec "$@"
"""


def install_for_one_uid(image: Path) -> None:
    program = image / _PROGRAM
    program.write_text(_FOR_ONE_UID)
    program.chmod(0o755)


def install(image: Path, admin: str, path: str) -> None:
    """Let `admin` become root without a password, as on EC2's images. Nothing happens where the host has no sudo."""
    if not _HOST_SUDO.exists():
        return
    program = image / _PROGRAM
    shutil.copy(_HOST_SUDO, program)
    program.chmod(0o4755)
    etc = image / "etc"
    _write(etc / "sudoers", _SUDOERS.format(path=path))
    _write(etc / "sudoers.d/90-cloud-init-users", _ALLOW.format(admin=admin))
    _write(etc / "pam.d/sudo", _PAM)
    for plugin in _HOST_PLUGINS:
        if plugin.exists():
            _take_plugin(etc, plugin)


def _take_plugin(etc: Path, plugin: Path) -> None:
    """sudo loads only what root owns."""
    (etc / _PLUGIN).parent.mkdir(exist_ok=True)
    shutil.copy(plugin, etc / _PLUGIN)
    (etc / _PLUGIN).chmod(0o644)
    _write(etc / "sudo.conf", f"Plugin sudoers_policy /etc/{_PLUGIN}\nPlugin sudoers_io /etc/{_PLUGIN}\n")


def _write(file: Path, text: str) -> None:
    """With the mode that sudo insists on for sudoers; harmless for the rest."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.write_text(text)
    file.chmod(0o440)
