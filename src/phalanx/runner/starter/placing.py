"""Copies a job's environment to each node, and its code, as launch.py's --sync-dst-dir does with rsync."""

from __future__ import annotations

import os
import shutil

from phalanx.objects import trees
from phalanx.runner.environments import node_copy


def place(code: str, target: str, kept: str) -> str:
    """Copy the code to `target` unless it is there, and the environment that is kept at `kept` ("": none) to this disk.

    Return what failed, else "".
    """
    if kept:
        try:
            node_copy.bring(kept)
        except OSError as error:
            return f"the environment can't be used on {{nodes}}: {error.filename or kept}: {error.strerror}"
    return place_tree(code, target) if code != target else ""


def place_tree(source: str, target: str) -> str:
    """Copy what is new or has changed; remove nothing. Return what failed, else "".

    "{nodes}" in the text is a placeholder for the names of the nodes.
    """
    try:
        for directory, names in trees.walk(source):
            place = os.path.join(target, os.path.relpath(directory, source))
            os.makedirs(place, exist_ok=True)
            for name in names:
                _place(os.path.join(directory, name), os.path.join(place, name))
    except OSError as error:
        return f"the code can't be copied to {target} on {{nodes}}: {error.filename or target}: {error.strerror}"
    return ""


def _place(source: str, target: str) -> None:
    if _is_same(source, target):
        return
    # Written as a temporary file and renamed: another node may write the same file on a shared directory.
    beside = f"{target}.{os.uname().nodename}.{os.getpid()}"
    shutil.copy2(source, beside, follow_symlinks=False)
    os.replace(beside, target)


def _is_same(source: str, target: str) -> bool:
    """Return whether mode, size and time of the last change agree, as in rsync's quick check."""
    try:
        one, other = os.lstat(source), os.lstat(target)
    except FileNotFoundError:
        return False
    return (one.st_mode, one.st_size, one.st_mtime_ns) == (other.st_mode, other.st_size, other.st_mtime_ns)
