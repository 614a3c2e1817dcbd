"""`agent.pyz boot` prepares a node and leaves the agent running; `serve` is that agent."""

from __future__ import annotations

import os
import sys

from phalanx.node import boot, daemon


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 when the boot failed."""
    os.umask(0o022)
    root = os.environ.get("PHALANX_ROOT", "")
    if arguments == ["serve"]:
        daemon.serve(root)
    if not boot.boot(root):
        return 1
    daemon.start(root)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
