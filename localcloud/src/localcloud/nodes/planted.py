"""What bad weather plants into a full operating system before it boots: an apt that is busy."""

from __future__ import annotations

from pathlib import Path

from localcloud.nodes import rootfs
from localcloud.nodes.machine import Machine

_UNITS, _NAME = "etc/systemd/system", "weather.service"
_MIRRORS = "etc/apt/apt.conf.d/99weather"
# No mirror answers until the unit has removed this.
_NO_MIRROR = 'Acquire::http::Proxy "http://127.0.0.1:9";\nAcquire::https::Proxy "http://127.0.0.1:9";\n'
# At first as apt-daily at an AMI's first boot: it holds the lock of the lists, for which apt-get does not wait. It
# begins with the service of cloud-init that runs user data, because a busy machine takes a minute to come to that.
_BUSY = """\
import fcntl, os, time; lists = open('/var/lib/apt/lists/lock', 'w'); fcntl.lockf(lists, fcntl.LOCK_EX); \
time.sleep({half_s:.1f}); lists.close(); time.sleep({half_s:.1f}); os.remove('/{mirrors}')"""
_UNIT = """\
[Unit]
After=cloud-config.service
Before=cloud-final.service

[Service]
ExecStart=/usr/bin/python3 -c "{script}"
"""


def plant(root: Path, machine: Machine) -> None:
    """Change the machine's root before its process 1 starts."""
    if machine.apt_busy_s:
        script = _BUSY.format(half_s=machine.apt_busy_s / 2, mirrors=_MIRRORS)
        _write(root, _MIRRORS, _NO_MIRROR)
        _write(root, f"{_UNITS}/{_NAME}", _UNIT.format(script=script))
        enabled = rootfs.make_directory(root, f"{_UNITS}/cloud-final.service.wants") / _NAME
        if not enabled.is_symlink():
            enabled.symlink_to(f"../{_NAME}")


def _write(root: Path, name: str, text: str) -> None:
    directory, _, file = name.rpartition("/")
    rootfs.make_file(rootfs.make_directory(root, directory) / file).write_text(text)
