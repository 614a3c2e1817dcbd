"""The variables of pip and uv: those that the job's own settings would affect, and pip's settings in uv's words."""

from __future__ import annotations

import configparser
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Dict, Mapping

# pip's key → uv's variable, and its separator between several values.
_NAMES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "cert": ("SSL_CERT_FILE", " "),
}


# Variables by which the job's own settings would affect the installer.
_NOT_FOR_PIP = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH", "VIRTUAL_ENV")
QUIET = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_NO_PYTHON_VERSION_WARNING": "1",
    # Each environment is made once: a cache would only fill the head's disk.
    "PIP_NO_CACHE_DIR": "1",
    "UV_NO_CACHE": "1",
    "PYTHONUNBUFFERED": "1",
}


def plain_variables() -> Dict[str, str]:
    """Return this process's variables without those by which a job's own settings would affect an installer."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_FOR_PIP}


def from_pip(env: Mapping[str, str]) -> Dict[str, str]:
    """Return variables for uv with the settings of pip's variables and files; uv's own variables override them."""
    files = ("/etc/pip.conf", env.get("PIP_CONFIG_FILE", ""))
    parser = configparser.RawConfigParser()
    try:
        parser.read([path for path in files if path])
    except configparser.Error:
        return {}
    # pip takes the best version from all indexes, too.
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for key, (name, between) in _NAMES.items():
        variable = "PIP_" + key.upper().replace("-", "_")
        value = env.get(variable) or parser.get("global", key, fallback="")
        if value:
            found[name] = between.join(value.split())
    return {name: value for name, value in found.items() if name not in env}
