"""The files of a config: content from the template, from the web or from S3, with mode, owner and group."""

from __future__ import annotations

import base64
import binascii
import json
import shutil
import stat
from pathlib import Path
from typing import Any

from localcloud.nodes.bootstrap.downloads import Downloads
from localcloud.nodes.bootstrap.failures import FailedError
from localcloud.nodes.bootstrap.mustache import render

_NOT_FOR_OTHERS = 0o775


def apply(files: dict[str, dict[str, Any]], downloads: Downloads) -> list[str]:
    """Write the files; return the paths of those that changed. A file that existed stays beside the new one as .bak."""
    return [name for name in sorted(files) if _write(Path(name), files[name], downloads)]


def _write(path: Path, given: dict[str, Any], downloads: Downloads) -> bool:
    if not path.is_absolute():
        raise FailedError(f"File specified with non-absolute path: {path}")
    mode = int(str(given["mode"]), 8) if "mode" in given else None
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode is not None and stat.S_ISLNK(mode):
        return _link(path, given)
    content = _content(path, given, downloads)
    before = path.read_bytes() if path.is_file() else None
    old_mode = stat.S_IMODE(path.stat().st_mode) if before is not None else None
    _back_up(path)
    path.write_bytes(content)
    default = old_mode if old_mode is not None else stat.S_IMODE(path.stat().st_mode) & _NOT_FOR_OTHERS
    path.chmod(stat.S_IMODE(mode) if mode is not None else default)
    _own(path, given)
    return content != before


def _link(path: Path, given: dict[str, Any]) -> bool:
    if "content" not in given:
        raise FailedError(f"{path}: symbolic link specified without a destination")
    if path.is_symlink() and str(path.readlink()) == given["content"]:
        return False
    _back_up(path)
    path.symlink_to(given["content"])
    _own(path, given)
    return True


def _back_up(path: Path) -> None:
    if path.exists() or path.is_symlink():
        path.rename(f"{path}.bak")


def _own(path: Path, given: dict[str, Any]) -> None:
    try:
        if given.get("owner"):
            shutil.chown(path, user=given["owner"])
        if given.get("group"):
            shutil.chown(path, group=given["group"])
    except LookupError as error:
        raise FailedError(f"{path}: {error}") from None


def _content(path: Path, given: dict[str, Any], downloads: Downloads) -> bytes:
    content = given.get("content")
    if not content and not given.get("source"):
        raise FailedError(f"{path}: file specified without source or content")
    if not content:
        fetched = downloads.fetch(given["source"], given.get("authentication"))
        return render(fetched.decode(), given["context"]).encode() if "context" in given else fetched
    if not isinstance(content, str):
        return json.dumps(content).encode()
    if given.get("encoding", "plain") == "base64":
        try:
            return base64.b64decode(content.strip(), validate=True)
        except binascii.Error:
            raise FailedError(f"{path}: malformed base64") from None
    return (render(content, given["context"]) if "context" in given else content).encode()
