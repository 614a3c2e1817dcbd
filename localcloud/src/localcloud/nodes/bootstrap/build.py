"""cfn-init: makes the machine what a resource's AWS::CloudFormation::Init describes."""

from __future__ import annotations

import grp
import json
import logging
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from localcloud.nodes.bootstrap import files
from localcloud.nodes.bootstrap.downloads import Downloads
from localcloud.nodes.bootstrap.failures import FailedError
from localcloud.nodes.bootstrap.shell import commands_log, log, run, truth

_DATA = Path("/var/lib/cfn-init/data")
_FORMAT = "%(asctime)s [%(levelname)s] %(message)s"
INIT = "AWS::CloudFormation::Init"
Config = tuple[str, dict[str, Any]]
# The order of AWS's: those of the operating system before those of languages.
_ORDER = ("rpm", "apt", "yum", "python", "rubygems")
_NAMES = {"python": "Python", "rpm": "RPM", "apt": "APT", "yum": "Yum", "rubygems": "RubyGems"}
_MANAGERS = ("sysvinit", "systemd")
_UNITS = ("/etc/systemd/system", "/opt/aws/apitools/cfn-init/units")
_ENABLED = Path("/etc/systemd/system/multi-user.target.wants")
_RUNNING = Path("/run/cfn-init")
Changes = dict[str, Any]


def build(metadata: dict[str, Any], names: Sequence[str], endpoint: str, verbose: bool) -> None:
    """Apply the config sets of this metadata, in order. Raises FailedError at the first step that fails."""
    _open_logs(verbose)
    _DATA.mkdir(parents=True, exist_ok=True, mode=0o700)
    (_DATA / "metadata.json").write_text(json.dumps(metadata, indent=4))
    downloads = Downloads(metadata, endpoint)
    log.info("Running configSets: %s", ", ".join(names))
    try:
        for name, config in configs(metadata, names):
            log.info("Running config %s", name)
            _apply(config, downloads)
    except Exception as error:
        log.error("Build failed: %s", error)
        raise
    log.info("ConfigSets completed")


def _apply(config: dict[str, Any], downloads: Downloads) -> None:
    """Apply a config's sections in AWS's order, whatever their order in the template."""
    changes: dict[str, Any] = {"packages": _install_packages(config.get("packages") or {})}
    changes["groups"] = _add_groups(config.get("groups") or {})
    changes["users"] = _add_users(config.get("users") or {})
    changes["sources"] = files.unpack_sources(config.get("sources") or {}, downloads)
    changes["files"] = files.apply(config.get("files") or {}, downloads)
    changes["commands"] = _run_commands(config.get("commands") or {})
    _set_services(config.get("services") or {}, changes)


def _open_logs(verbose: bool) -> None:
    for logger, name in ((log, "cfn-init.log"), (commands_log, "cfn-init-cmd.log")):
        handler = logging.FileHandler(f"/var/log/{name}")
        handler.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    if verbose:
        log.addHandler(logging.StreamHandler(sys.stderr))


def configs(metadata: dict[str, Any], names: Sequence[str]) -> list[Config]:
    """Return the configs of these config sets, by name, in their order. Raises FailedError for an undefined one."""
    init = metadata[INIT]
    if "configSets" not in init:
        _require(list(names) == ["default"], f"no ConfigSet named {names[-1]} exists")
        return [("config", init.get("config") or {})]
    sets = init["configSets"]
    _require(isinstance(sets, dict), "configSets should be a mapping of name to list")
    return [config for name in names for config in _of_set(init, sets, name, ())]


def _of_set(init: dict[str, Any], sets: dict[str, Any], name: str, above: tuple[str, ...]) -> Iterator[Config]:
    _require(name in sets, f"no ConfigSet named {name} exists")
    _require(name not in above, f"circular dependency of configSets: {' → '.join((*above, name))}")
    for entry in sets[name] if isinstance(sets[name], list) else [sets[name]]:
        if isinstance(entry, dict):
            _require("ConfigSet" in entry, f"ConfigSet {name}: {entry} is neither a config nor a ConfigSet")
            yield from _of_set(init, sets, entry["ConfigSet"], (*above, name))
        else:
            _require(entry in init, f"no configuration found with name: {entry}")
            yield entry, init[entry] or {}


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise FailedError(reason)


def _run_commands(commands: dict[str, dict[str, Any]]) -> list[str]:
    """Run the commands whose tests pass; return their names. Raises FailedError at the first that fails.

    `waitAfterCompletion` has no effect, as on AWS: it is for machines with Windows.
    """
    return [name for name in sorted(commands) if _run_command(name, commands[name])]


def _run_command(name: str, given: dict[str, Any]) -> bool:
    if "command" not in given:
        raise FailedError(f"{name} does not specify the 'command' attribute, which is required")
    cwd = str(Path(given["cwd"]).expanduser()) if "cwd" in given else None
    env = given.get("env")
    if "test" in given and run(given["test"], f"Test for Command {name}", env, cwd):
        log.info("Command %s: its test failed", name)
        return False
    if run(given["command"], f"Command {name}", env, cwd) and not truth(given.get("ignoreErrors")):
        raise FailedError(f"Command {name} failed")
    log.info("Command %s ended", name)
    return True


def _add_groups(groups: dict[str, dict[str, Any] | None]) -> list[str]:
    """Make the groups that are missing; return their names."""
    return [name for name in sorted(groups) if _add_group(name, str((groups[name] or {}).get("gid", "")))]


def _add_group(name: str, gid: str) -> bool:
    existing = next((group for group in grp.getgrall() if group.gr_name == name), None)
    if existing:
        _require_same("Group", name, "gid", existing.gr_gid, gid)
        return False
    _succeed(["/usr/sbin/groupadd", "-r", *(["-g", gid] if gid else []), name], f"create group {name}")
    return True


def _add_users(users: dict[str, dict[str, Any] | None]) -> list[str]:
    """Make users that can't log in, or change their groups and homes; return the names of those that changed."""
    return [name for name in sorted(users) if _add_user(name, users[name] or {})]


def _add_user(name: str, given: dict[str, Any]) -> bool:
    existing = next((user for user in pwd.getpwall() if user.pw_name == name), None)
    home, uid = given.get("homeDir"), str(given.get("uid", ""))
    options = [*(["-G", ",".join(map(str, given["groups"]))] if given.get("groups") else [])]
    options += ["-d", home] if home and not (existing and existing.pw_dir == home) else []
    if existing is None:
        wanted = ["-M", "-r", "--shell", "/sbin/nologin", *options, *(["-u", uid] if uid else [])]
        _succeed(["/usr/sbin/useradd", *wanted, name], f"add user {name}")
        return True
    _require_same("User", name, "uid", existing.pw_uid, uid)
    if options:
        _succeed(["/usr/sbin/usermod", *options, name], f"modify user {name}")
    return bool(options)


def _require_same(what: str, name: str, key: str, number: int, wanted: str) -> None:
    if wanted and str(number) != wanted:
        raise FailedError(f"{what} {name} exists with {key} {number}, but {key} {wanted} was requested")


def _succeed(command: list[str], doing: str) -> None:
    if run(command, doing):
        raise FailedError(f"FailedError to {doing}")


def _install_packages(packages: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Install packages; return the names of what was installed, by package manager. Raises FailedError."""
    for manager in packages:
        if manager not in _ORDER:
            log.warning("Unsupported package manager: %s", manager)
    return {one: _installed(one, packages[one] or {}) for one in _ORDER if one in packages}


def _installed(manager: str, wanted: dict[str, Any]) -> list[str]:
    if manager == "python":
        return _python(wanted)
    missing = [name for name in sorted(wanted) if shutil.which(name) is None]
    if missing:
        raise FailedError(
            f"{_NAMES[manager]} does not have {', '.join(missing)} available for installation: "
            "a node of the local cloud's image has the programs of its machine, and no package manager"
        )
    return []


def _python(wanted: dict[str, Any]) -> list[str]:
    specified = [_pinned(name, version) for name in sorted(wanted) for version in _versions(wanted[name])]
    command = ["/usr/bin/python3", "-m", "pip", "install", "--quiet", "--user", "--break-system-packages", *specified]
    if specified and run(command, f"pip install {' '.join(specified)}"):
        raise FailedError("Could not successfully install python packages")
    return sorted(wanted)


def _versions(given: Any) -> list[str]:
    versions = given if isinstance(given, list) else [given]
    return [str(version or "") for version in versions] or [""]


def _pinned(name: str, version: str) -> str:
    if version.startswith(("http://", "https://")):
        return version
    return f"{name}=={version}" if version else name


def _set_services(services: dict[str, dict[str, Any]], changes: Changes) -> None:
    """Enable, start, stop or restart services: the last, if something that a service names was changed."""
    for manager, wanted in services.items():
        if manager not in _MANAGERS:
            log.warning("Unsupported service manager: %s", manager)
            continue
        for name, given in wanted.items():
            _set_service(name, given or {}, changes)


def _set_service(name: str, given: dict[str, Any], changes: Changes) -> None:
    if "enabled" in given:
        _enable_service(name, truth(given["enabled"]))
    pid, wanted = _pid(name), truth(given.get("ensureRunning"))
    restart = _is_affected(given, changes)
    if pid and (restart or ("ensureRunning" in given and not wanted)):
        os.killpg(pid, signal.SIGTERM)
        pid = None
    if restart or (wanted and not pid):
        _start_service(name)


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


def _enable_service(name: str, enabled: bool) -> None:
    link = _ENABLED / f"{name}.service"
    if not enabled:
        link.unlink(missing_ok=True)
    elif not link.is_symlink():
        _ENABLED.mkdir(parents=True, exist_ok=True)
        link.symlink_to(_unit(name))


def _start_service(name: str) -> None:
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
