"""Finds the file of a job's code that names its packages: the script itself, a lock, or requirements.txt."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from phalanx.jobs.own_imports import MOST_BYTES, read_script
from phalanx.runner.starter.check import python_target, without_wrappers

REQUIREMENTS, UV_LOCK = "requirements.txt", "uv.lock"
_IN_ORDER = ("pylock.toml", UV_LOCK, REQUIREMENTS)
_BEGIN, _END = re.compile(r"# /// [a-zA-Z0-9-]+"), "# ///"


def find(directory: Path, command: Sequence[str]) -> Path | None:
    """Return the first such file that is there. What is neither file nor directory is refused when it is read."""
    words = without_wrappers(command)
    # Launchers such as torchrun give a script to Python themselves.
    target = (python_target(words) or [one for one in words[:1] if one.endswith(".py")]) if words else []
    if len(target) == 1 and _has_block(directory, target[0]):
        return directory / target[0]
    places = (directory / name for name in _IN_ORDER)
    return next((path for path in places if os.path.lexists(path) and not path.is_dir()), None)


def is_lock(path: Path) -> bool:
    """Return whether a file's name is that of a lock, or of a script."""
    return path.name == UV_LOCK or path.suffix == ".py" or bool(re.fullmatch(r"pylock(\.[^.]+)?\.toml", path.name))


def blocks(script: bytes) -> list[str]:
    """Return the TOML of each block `# /// script`, as the expression of PEP 723 finds them.

    The expression itself takes a quarter of an hour for some files of 1 MiB.
    """
    found = []
    lines = script.decode(errors="replace").replace("\r\n", "\n").split("\n")
    for is_comment, group in groupby(lines, lambda line: line == "#" or line.startswith("# ")):
        run = list(group) if is_comment else []
        begin = next((at for at, line in enumerate(run) if _BEGIN.fullmatch(line)), len(run))
        # A block goes on to the last such line.
        end = len(run) - 1 - run[::-1].index(_END) if _END in run else 0
        if begin + 1 < end and run[begin] == "# /// script":
            found.append("\n".join(line[2:] for line in run[begin + 1 : end]))
    return found


def _has_block(directory: Path, script: str) -> bool:
    with suppress(OSError, ValueError):
        return bool(blocks(read_script(directory / script, MOST_BYTES, directory)))
    return False
