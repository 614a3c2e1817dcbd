"""This machine's pip settings, for the machine image: `pip install` on a node finds what it finds here."""

from __future__ import annotations

import configparser
import os
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Where packages come from and how the index is trusted; other settings concern only this machine.
_KEYS = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert", "client-cert", "timeout")
_WITH_PATHS = ("index-url", "extra-index-url", "find-links", "cert", "client-cert")
_SECTIONS = ("global", "install")
# Where requests, inside pip, finds its certificates when pip has no setting for them.
_CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True)
class PipSettings:
    """The settings: `text` is a pip.conf ("" for none), `paths` are this machine's files and directories it names."""

    text: str
    paths: tuple[Path, ...]


def read(environ: Mapping[str, str] = os.environ) -> PipSettings:
    """Read the settings as pip does: later files override earlier ones, and variables override all files."""
    found: dict[str, str] = {}
    for path in _files(environ):
        found.update(_of_file(path))
    for key in _KEYS:
        name = key.upper().replace("-", "_")
        value = environ.get(f"PIP_{name}", environ.get("PIP_DEFAULT_TIMEOUT") if key == "timeout" else None)
        if value:
            found[key] = value
    certificates = next((environ[name] for name in _CERTIFICATES if environ.get(name)), None)
    if certificates:
        found.setdefault("cert", certificates)
    lines = "".join(f"{key} = {' '.join(value.split())}\n" for key, value in found.items())
    paths = [path for key in _WITH_PATHS for path in _paths(key, found.get(key, ""))]
    return PipSettings(f"[global]\n{lines}" if lines else "", tuple(dict.fromkeys(paths)))


def _files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield pip's files, the lowest precedence first (pip's documentation, "Configuration Files")."""
    home = Path(environ.get("HOME", "/nonexistent"))
    chosen = environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return
    for directory in reversed(environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")):
        yield Path(directory, "pip", "pip.conf")
    yield Path("/etc/pip.conf")
    yield home / ".pip" / "pip.conf"
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if chosen:
        yield Path(chosen)


def _of_file(path: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text())
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}
    sections = [parser[name] for name in _SECTIONS if parser.has_section(name)]
    return {key: section[key] for section in sections for key in _KEYS if key in section}


def _paths(key: str, value: str) -> Iterator[Path]:
    for word in value.split():
        url = urllib.parse.urlsplit(word)
        if url.scheme == "file":
            place = Path(urllib.request.url2pathname(url.path))
        elif not url.scheme and word.startswith(("/", "~")):
            place = Path(word).expanduser()
        else:
            continue
        # An index refers to files beside it.
        place = place.parent if key.endswith("index-url") and len(place.parts) > 2 else place
        if place.exists():
            yield place
