"""Translates pip's settings, which uv does not read, to uv's variables, so that both find the same packages."""

from __future__ import annotations

import configparser
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
