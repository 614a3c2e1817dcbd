"""The services of a config: units that the image's `service` runs, enabled for each boot, running or not."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from localcloud.nodes.bootstrap.failures import FailedError
from localcloud.nodes.bootstrap.shell import log, truth

_MANAGERS = ("sysvinit", "systemd")
_UNITS = ("/etc/systemd/system", "/opt/aws/apitools/cfn-init/units")
_ENABLED = Path("/etc/systemd/system/multi-user.target.wants")
_RUNNING = Path("/run/cfn-init")
Changes = dict[str, Any]


def apply(services: dict[str, dict[str, Any]], changes: Changes) -> None:
    """Enable, start, stop or restart services: the last, if something that a service names was changed."""
    for manager, wanted in services.items():
        if manager not in _MANAGERS:
            log.warning("Unsupported service manager: %s", manager)
            continue
        for name, given in wanted.items():
            _set(name, given or {}, changes)


def _set(name: str, given: dict[str, Any], changes: Changes) -> None:
    if "enabled" in given:
        _enable(name, truth(given["enabled"]))
    pid, wanted = _pid(name), truth(given.get("ensureRunning"))
    restart = _is_affected(given, changes)
    if pid and (restart or ("ensureRunning" in given and not wanted)):
        os.killpg(pid, signal.SIGTERM)
        pid = None
    if restart or (wanted and not pid):
        _start(name)


def _is_affected(given: dict[str, Any], changes: Changes) -> bool:
    kinds = ("files", "sources", "commands", "groups", "users")
    if any(set(given.get(kind) or ()) & set(changes.get(kind) or ()) for kind in kinds):
        return True
    packages = given.get("packages") or {}
    return any(set(packages[one] or ()) & set(changes["packages"].get(one) or ()) for one in packages)


def _unit(name: str) -> Path:
    for directory in _UNITS:
        unit = Path(directory, f"{name}.service")
        if unit.is_file():
            return unit
    raise FailedError(f"Could not start {name}: there is no unit {name}.service in /etc/systemd/system")


def _enable(name: str, enabled: bool) -> None:
    link = _ENABLED / f"{name}.service"
    if not enabled:
        link.unlink(missing_ok=True)
    elif not link.is_symlink():
        _ENABLED.mkdir(parents=True, exist_ok=True)
        link.symlink_to(_unit(name))


def _start(name: str) -> None:
    unit = str(_unit(name))
    with open(f"/var/log/{name}.log", "ab") as output:
        started: subprocess.Popen[bytes] = subprocess.Popen(
            ["/sbin/service", unit], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    _RUNNING.mkdir(exist_ok=True)
    (_RUNNING / f"{name}.pid").write_text(str(started.pid))
    log.info("Started %s", name)


def _pid(name: str) -> int | None:
    """Return the process of a service that this program or the boot has started, or None."""
    for process in _candidates(name):
        try:
            line = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"/sbin/service" in line and any(part.endswith(f"/{name}.service".encode()) for part in line):
            return process
    return None


def _candidates(name: str) -> list[int]:
    noted = _RUNNING / f"{name}.pid"
    if noted.is_file():
        return [int(noted.read_text())]
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
