"""Finds the file of a job's code that names its packages: the script itself, a lock, or requirements.txt."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from phalanx.jobs.own_imports import MOST_BYTES, read_script
from phalanx.runner.starter.check import python_target

REQUIREMENTS, UV_LOCK = "requirements.txt", "uv.lock"
_IN_ORDER = ("pylock.toml", UV_LOCK, REQUIREMENTS)
BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""The expression of PEP 723."""


def find(directory: Path, command: Sequence[str]) -> Path | None:
    """Return the first such file that is there. What is neither file nor directory is refused when it is read."""
    target = python_target(command) if command else []
    if len(target) == 1 and _has_block(directory, target[0]):
        return directory / target[0]
    places = (directory / name for name in _IN_ORDER)
    return next((path for path in places if os.path.lexists(path) and not path.is_dir()), None)


def is_lock(path: Path) -> bool:
    """Return whether a file's name is that of a lock, or of a script."""
    return path.name == UV_LOCK or path.suffix == ".py" or bool(re.fullmatch(r"pylock(\.[^.]+)?\.toml", path.name))


def text_of(script: bytes) -> str:
    """Return a script's text, with ends of lines as the expression of PEP 723 takes them."""
    return script.decode(errors="replace").replace("\r\n", "\n")


def _has_block(directory: Path, script: str) -> bool:
    with suppress(OSError, ValueError):
        text = text_of(read_script(directory / script, MOST_BYTES, directory))
        return any(found["type"] == "script" for found in BLOCK.finditer(text))
    return False
