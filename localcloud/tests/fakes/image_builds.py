"""Builds of images in the local cloud's Image Builder whose machines are played, and not booted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from stack_fakes import Stacks

from localcloud.images.imagebuilder import build


class PlayedShell:
    """A shell whose scripts succeed, unless one contains `fails`; while `gate` is closed, they wait."""

    ran: ClassVar[list[str]] = []
    fails = "never"
    copied = ""
    prints = "== played"
    gate = threading.Event()

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def succeeds(self, *_argv: str) -> bool:
        return True

    def run(self, script: str, _timeout_s: float, say: Callable[[str], None]) -> str:
        self.gate.wait(20)
        self.ran.append(script)
        say(self.prints)
        return "exit code 7" if self.fails in script else ""

    def copy(self, tree: Path) -> str:
        (tree / "var/lib/dpkg").mkdir(parents=True)
        (tree / "var/lib/dpkg/status").write_text("Package: a\nStatus: install ok installed\n")
        return self.copied


def play(cloud: Stacks, images: Path, monkeypatch: pytest.MonkeyPatch) -> type[PlayedShell]:
    """Have each booted machine of the cloud play its part, and images go into this directory; return the shell."""
    shell = type("Shell", (PlayedShell,), {"ran": [], "gate": threading.Event()})
    shell.gate.set()
    monkeypatch.setattr(build, "Shell", shell)
    monkeypatch.setattr(build.os, "chown", lambda *_: None)
    monkeypatch.setattr(build, "_LOOK_EVERY_S", 0.001)
    booted = cloud.runner.booted
    nodes = lambda: [SimpleNamespace(instance_id=one, pid=1, inner_pid=1) for one in booted]  # noqa: E731
    monkeypatch.setattr(cloud.runner, "nodes", nodes)
    cloud.context.images = images
    return shell
