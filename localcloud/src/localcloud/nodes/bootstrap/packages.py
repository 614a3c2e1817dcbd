"""The packages of a config: what the local image has, and Python's packages.

The local image's /usr is this machine's, which a node can't change: a package for `yum`, `apt`, `rpm` or `rubygems`
that is not there can't be installed, and fails the config.
"""

from __future__ import annotations

import shutil
from typing import Any

from localcloud.nodes.bootstrap.failures import FailedError
from localcloud.nodes.bootstrap.shell import log, run

# The order of AWS's: those of the operating system before those of languages.
_ORDER = ("rpm", "apt", "yum", "python", "rubygems")
_NAMES = {"python": "Python", "rpm": "RPM", "apt": "APT", "yum": "Yum", "rubygems": "RubyGems"}


def apply(packages: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Install packages; return the names of what was installed, by package manager. Raises FailedError."""
    for manager in packages:
        if manager not in _ORDER:
            log.warning("Unsupported package manager: %s", manager)
    return {one: _of(one, packages[one] or {}) for one in _ORDER if one in packages}


def _of(manager: str, wanted: dict[str, Any]) -> list[str]:
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
