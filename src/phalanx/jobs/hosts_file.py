"""Hosts files, as MXNet's launch.py and mpiexec read them: which of the cluster's nodes the lines name."""

from __future__ import annotations

import difflib
from pathlib import Path

from phalanx import guest_file
from phalanx.errors import SpecError
from phalanx.node.roster import Roster

_LARGEST_BYTES = 1 << 20
# $DEEPLEARNING_WORKERS_PATH on every node: the names of all nodes.
_ON_NODES = "/opt/deeplearning/workers"


def is_nodes_own(path: Path) -> bool:
    """Return whether this is the nodes' own file, named on a machine that is not one of them."""
    return str(path) == _ON_NODES and not path.exists()


def load(path: Path, roster: Roster) -> tuple[str, ...]:
    """Return the nodes' names, in the file's order. Raises SpecError with the first 20 mistakes and their lines."""
    try:
        text = guest_file.read(path, _LARGEST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"can't read the hosts file {path}: {error}", code="cannot-read") from None
    return parse(text, roster, str(path))


def parse(text: str, roster: Roster, place: str) -> tuple[str, ...]:
    """Return the nodes' names in this text, as `load` does. Messages put `place` before the line numbers.

    A line is a node's name, address or host name; what follows it (`:22`, `slots=8`), empty lines and comments are
    ignored.
    """
    found: dict[str, int] = {}
    mistakes: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        mistake = _take(words[0].partition(":")[0], number, roster, found)
        if mistake:
            mistakes.append(f"{place}:{number}: {mistake}")
    if not found and not mistakes:
        mistakes.append(f"{place}: no line names a host")
    if mistakes:
        hint = "`phalanx nodes` lists the cluster's names and addresses."
        raise SpecError.alike(mistakes, hint, code="hosts-file")
    return tuple(found)


def _take(host: str, number: int, roster: Roster, found: dict[str, int]) -> str:
    """Note the node that the line names. Return what is wrong with it, else ""."""
    node = roster.find(host)
    if node is None:
        return _unknown(host, roster)
    if node.name in found:
        same = "" if host == node.name else f" ({node.name})"
        return f"{host}{same} is already in line {found[node.name]}"
    found[node.name] = number
    return ""


def _unknown(host: str, roster: Roster) -> str:
    for missing in roster.missing:
        if missing.name == host:
            return f"{host} is missing: {missing.reason}"
    if any(host == node.name for node in roster.silent):
        return f"{host} is silent"
    known = [key for node in roster.nodes for key in (node.name, node.address, node.hostname)]
    near = difflib.get_close_matches(host, known, 1)
    return f"{host} is not a node of cluster {roster.cluster}" + (f"; did you mean {near[0]}?" if near else "")
