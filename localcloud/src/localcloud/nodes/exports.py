"""What nodes serve each other over NFS: trees in the state directory, which they bind, and whose names they publish.

A client of NFS with root's rights writes in what a server exports, and nowhere else. So each node gets empty trees
with random names, in a directory that no node can list, and a list of those that it exports, which only it can write.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from localcloud.nodes import kernel, userns
from localcloud.nodes.machine import Machine, Site
from localcloud.nodes.programs import MOST_EXPORTS

_TREES, _LISTS = "trees", "lists"
_TREES_OF_NODE = "exports"


def make(site: Site, machine: Machine) -> None:
    """Make the trees and the empty list of a new machine; an earlier one at its address keeps nothing there."""
    trees, lists = (site.exports(machine.vpc_id) / name for name in (_TREES, _LISTS))
    lists.mkdir(parents=True, exist_ok=True)
    if not trees.is_dir():
        trees.mkdir(mode=0o711)
        with suppress(OSError):  # a user namespace with one id
            os.chown(trees, *[userns.no_nodes_id(site.root)] * 2)
    names = [secrets.token_hex(16) for _ in range(MOST_EXPORTS)]
    for name in names:
        (trees / name).mkdir(mode=0o755)
        os.chown(trees / name, site.root, site.root)
    own = lists / machine.address
    own.unlink(missing_ok=True)
    own.touch(mode=0o644)
    os.chown(own, site.root, site.root)
    (site.node(machine.instance_id) / _TREES_OF_NODE).write_text("".join(f"{name}\n" for name in names))


def show(site: Site, machine: Machine, shelf: Path) -> None:
    """Bind onto a node's shelf the trees, all lists, which only their own nodes can write, and this node's own list."""
    names = (site.node(machine.instance_id) / _TREES_OF_NODE).read_text()
    for name in (_TREES, _LISTS):
        (shelf / name).mkdir()
    (shelf / "own-trees").write_text(names)
    (shelf / "own-list").touch()
    exports = site.exports(machine.vpc_id)
    kernel.bind(exports / _TREES, shelf / _TREES)
    kernel.bind(exports / _LISTS, shelf / _LISTS, read_only=True)
    kernel.bind(exports / _LISTS / machine.address, shelf / "own-list")
