"""py-spy as the head fetches it, kept beside the tests' environment, because each fetch makes an environment."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from phalanx.runner.environments import tracer_wheel

_KEPT = Path(sys.prefix) / "tools"


def bring_py_spy(shared: Path) -> None:
    """Put py-spy where the head of a cluster with this shared directory would have put it."""
    fetch_py_spy()
    shutil.copytree(_KEPT, shared / ".phalanx" / "tools", dirs_exist_ok=True)


def fetch_py_spy() -> None:
    """Keep py-spy for the calls of `bring_py_spy`, which may have no network."""
    if not list(_KEPT.glob("py-spy-*")):
        tracer_wheel.fetch(str(_KEPT))
