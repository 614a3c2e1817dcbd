"""A hosts file as MXNet's launch.py and mpiexec take it: which of the cluster's nodes its lines mean."""

from __future__ import annotations

import difflib
from pathlib import Path

from phalanx.errors import SpecError
from phalanx.node.roster import Roster

# Of a file that is no hosts file the first lines tell enough.
_MOST_TOLD = 20
# $DEEPLEARNING_WORKERS_PATH on every node: the names of all of them.
_ON_NODES = "/opt/deeplearning/workers"


def is_nodes_own(path: Path) -> bool:
    """Is the nodes' own file meant, from a machine that is none of them?"""
    return str(path) == _ON_NODES and not path.exists()


def load(path: Path, roster: Roster) -> tuple[str, ...]:
    """Names of the nodes, in the file's order. Raises SpecError with its mistakes (the first 20) and their lines."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"can't read the hosts file {path}: {error}") from None
    return parse(text, roster, str(path))


def parse(text: str, roster: Roster, place: str) -> tuple[str, ...]:
    """The same for its text; `place` stands before the line numbers.

    A line is a node's name, address or host name; what follows it (`:22`, `slots=8`) is passed over, as are empty
    lines and comments.
    """
    found: dict[str, int] = {}
    mistakes: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(mistakes) == _MOST_TOLD:
            mistakes.append("… and so on")
            break
        mistake = _take(words[0].partition(":")[0], number, roster, found)
        if mistake:
            mistakes.append(f"{place}:{number}: {mistake}")
    if not found and not mistakes:
        mistakes.append(f"{place}: no line of it names a host")
    if mistakes:
        raise SpecError("\n".join(mistakes), "`phalanx nodes` lists the cluster's names and addresses.")
    return tuple(found)


def _take(host: str, number: int, roster: Roster, found: dict[str, int]) -> str:
    """Note the node that the host is; what is wrong with it, else ""."""
    node = roster.find(host)
    if node is None:
        return _unknown(host, roster)
    if node.name in found:
        same = "" if host == node.name else f" ({node.name})"
        return f"{host}{same} stands in line {found[node.name]} already"
    found[node.name] = number
    return ""


def _unknown(host: str, roster: Roster) -> str:
    for missing in roster.missing:
        if missing.name == host:
            return f"{host} is missing: {missing.reason}"
    known = [key for node in roster.nodes for key in (node.name, node.address, node.hostname)]
    near = difflib.get_close_matches(host, known, 1)
    return f"{host} is no node of the cluster {roster.cluster}" + (f"; is {near[0]} meant?" if near else "")
