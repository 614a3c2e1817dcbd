"""uv reads none of pip's settings: here they are as uv's variables, so that both find the same packages."""

from __future__ import annotations

import configparser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Dict, Mapping

# pip's key → uv's variable, and what stands between several values there.
_NAMES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "cert": ("SSL_CERT_FILE", " "),
}


def from_pip(env: Mapping[str, str]) -> Dict[str, str]:
    """Variables for uv that say what pip's variables and files say; what is set for uv itself comes first."""
    files = ("/etc/pip.conf", env.get("PIP_CONFIG_FILE", ""))
    parser = configparser.RawConfigParser()
    try:
        parser.read([path for path in files if path])
    except configparser.Error:
        return {}
    # pip looks for the best version in all of them, too.
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for key, (name, between) in _NAMES.items():
        variable = "PIP_" + key.upper().replace("-", "_")
        value = env.get(variable) or parser.get("global", key, fallback="")
        if value:
            found[name] = between.join(value.split())
    return {name: value for name, value in found.items() if name not in env}
