"""Clusters whose nodes boot a full operating system; `make full-os IMAGE=…` builds its image before the tests."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from terminals import Terminal, a_cluster

from localcloud.images import store
from localcloud.nodes import userns
from phalanx.local import images
from phalanx.plan.machine_images import admin_user_of

IMAGE = os.environ.get("PHALANX_FULL_IMAGE", "ubuntu-24.04")
ADMINISTRATOR = admin_user_of(IMAGE)
SPEC = f"cloud: local\ntype: c5.large\nimage: {IMAGE}-full\nkeep: no\n"
# systemd, cloud-init, the installation of what the image lacks: on a busy machine.
UP_S = 900.0


@contextmanager
def a_full_cluster(name: str, nodes: int, more: str = "") -> Iterator[Terminal]:
    """Bring a cluster of full operating systems up, and take it down; `more` are further lines of its phalanx.yaml."""
    with a_cluster(f"name: {name}\nnodes: {nodes}\nmin: {nodes}\n{SPEC}{more}", UP_S) as terminal:
        yield terminal


@contextmanager
def a_copy_of_the_image() -> Iterator[Path]:
    """Yield a value for XDG_DATA_HOME with a copy of the image. New files in it do not change the image."""
    original = images.directory() / IMAGE
    # On the same file system, because the copy has hard links.
    with tempfile.TemporaryDirectory(dir=images.directory()) as place:
        copy = Path(place) / "phalanx/images" / IMAGE
        copy.parent.mkdir(parents=True)
        as_nodes_root(["cp", "-al", str(original), str(copy)])
        yield Path(place)
        store.remove(copy)


def as_root(terminal: Terminal, node: str, command: str) -> str:
    """Run a command as root on a node; return its standard output."""
    answer = terminal.phalanx("exec", "--sudo", "--json", "--node", node, "--", command, timeout_s=600)
    return json.loads(answer.stdout)[0]["stdout"]


def nodes(terminal: Terminal) -> list[dict]:
    """Return the members of the cluster."""
    return json.loads(terminal.phalanx("status", "--json").stdout)["nodes"]


def as_nodes_root(argv: list[str]) -> None:
    """Run a program that may change files with the ids of nodes."""
    pid = userns.spawn("range", lambda: subprocess.run(argv, check=False).returncode)
    assert os.waitpid(pid, 0)[1] == 0, argv


def reboot(terminal: Terminal, node: str, timeout_s: float = 180) -> None:
    """Reboot a node by its own systemd, and wait until it lets the user in and no node is silent."""
    started = "systemctl show --property=UserspaceTimestampMonotonic"
    before = as_root(terminal, node, started)
    as_root(terminal, node, "systemctl reboot")
    end = time.monotonic() + timeout_s
    while terminal.phalanx("ssh", node, "--", started, check=False).stdout in ("", before):
        assert time.monotonic() < end, f"no login to {node} after {timeout_s} s"
        time.sleep(0.5)
    while silent := json.loads(terminal.phalanx("status", "--json").stdout)["silent"]:
        assert time.monotonic() < end, f"{silent} after {timeout_s} s"
        time.sleep(0.5)
