"""Lists the environments on the shared directory, and removes those that no job uses."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from phalanx.objects import trees
from phalanx.runner.environments import node_copy
from phalanx.runner.environments.environment import lock

if TYPE_CHECKING:
    from typing import Any, Dict


def list_environments(root: str, prune: bool) -> int:
    """Print one JSON line per environment; with `prune`, first remove those that no job uses or makes."""
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        path = os.path.join(root, name)
        if os.path.isdir(path):
            print(json.dumps(_look_at(path, prune)), flush=True)
    return 0


def _look_at(path: str, prune: bool) -> Dict[str, Any]:
    facts = {"path": path, "name": os.path.basename(path).rpartition("-")[0], "complete": False, **_facts(path)}
    held = lock(path, fcntl.LOCK_EX)
    facts.update(in_use=held is None, removed=False)
    if held is None:
        return facts
    if prune:
        # The lock's file stays: a process that waits for it must not find another one. Copies on other nodes go when
        # these need room.
        node_copy.remove(path)
        with suppress(FileNotFoundError):
            os.unlink(node_copy.archive_of(path))
        facts["removed"] = trees.remove(path)
    os.close(held)
    return facts


def _facts(path: str) -> Dict[str, Any]:
    try:
        with open(os.path.join(path, node_copy.COMPLETE)) as file:
            used_at = os.fstat(file.fileno()).st_mtime
            return {**json.load(file), "used_at": used_at, "complete": True}
    except FileNotFoundError:
        return {}
