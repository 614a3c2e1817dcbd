"""Answers an engine's agent with the exit code of the daemon that it requested."""

from __future__ import annotations

import os

# ssh's own exit code when it can't start the command.
REFUSED = 255


def answer(agent: int, code: int) -> None:
    """Send an agent its daemon's exit code, with which the agent ends, too."""
    try:
        os.write(agent, f"{code if code >= 0 else 128 - code}\n".encode())
    except OSError:
        pass  # the engine is gone, and its agent with it
    os.close(agent)
