"""The head's end of `phalanx get` and `phalanx put`: finds the place on the shared directory, and copies."""

from __future__ import annotations

import glob
import json
import os
import sys
from itertools import islice
from typing import Any, Dict, List

from phalanx.runner.files import carry

_MOST_MATCHES = 1000


def give(path: str, shared: str) -> int:
    """Write what is at this path to stdout, or a header with the error."""
    out = sys.stdout.buffer
    try:
        problem = _problem(path, shared)
        load = None if problem else carry.survey(path)
    except carry.CarryError as error:
        problem, load = {"error": str(error)}, None
    if load is None:
        carry.say(out, problem)
        return 0
    try:
        carry.offer(out, load)
        carry.send(out, carry.left(sys.stdin.buffer, load))
        out.flush()
    except carry.CarryError as error:
        sys.exit(str(error))
    except BrokenPipeError:
        sys.exit("the other end is gone")
    return 0


def find_place(target: str, shared: str, name: str) -> int:
    """Print the place of a copy to `target`: in it, as `name`, when it is a directory."""
    place = os.path.join(target, name) if target.endswith("/") or os.path.isdir(target) else target
    try:
        _require_inside(os.path.dirname(place), shared)
        print(json.dumps({"place": place}))
    except carry.CarryError as error:
        print(json.dumps({"error": str(error)}))
    return 0


def take(place: str, shared: str) -> int:
    """Say which files are at this place already, copy the others from stdin, and print the place."""
    source, out = sys.stdin.buffer, sys.stdout.buffer
    try:
        header = carry.read_header(source)
        _require_inside(os.path.dirname(place), shared)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        known = carry.known(source, header, place)
        carry.say(out, known.answer())
        carry.receive(source, header, place, known=known)
        carry.say(out, {"place": place})
    except carry.CarryError as error:
        carry.say(out, {"error": str(error)})
    except OSError as error:
        carry.say(out, {"error": f"can't write {error.filename or place!r}: {error.strerror}"})
    return 0


def _problem(path: str, shared: str) -> Dict[str, Any]:
    """Return {} when there is something to send; else the error, or what the nearest directory contains."""
    if not os.path.lexists(path):
        parent = os.path.dirname(path)
        while not os.path.isdir(parent):
            parent = os.path.dirname(parent)
        matches = _matches(path)
        return {"missing": path, "parent": parent, "holds": carry.names_in(parent), "matches": matches}
    if not os.path.exists(path):
        return {"error": f"{path} is a link to {os.readlink(path)}, which does not exist"}
    try:
        _require_inside(path, shared)
    except carry.CarryError as error:
        return {"error": str(error)}
    return {}


def _matches(pattern: str) -> List[str]:
    """Return the paths that a pattern of a shell matches; `**` is any number of directories."""
    found = list(islice(glob.iglob(pattern, recursive=True), _MOST_MATCHES + 1))
    if len(found) > _MOST_MATCHES:
        raise carry.CarryError(f"{pattern} matches more than {_MOST_MATCHES} files: name their directory")
    return sorted(found)


def _require_inside(path: str, shared: str) -> None:
    """Raise CarryError for a path that leads out of the shared directory."""
    real = os.path.realpath(path)
    if not (real + "/").startswith(os.path.realpath(shared) + "/"):
        raise carry.CarryError(f"{path} leads to {real}, which is not on the shared directory {shared}")
