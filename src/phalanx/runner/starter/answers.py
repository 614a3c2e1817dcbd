"""How an engine's agent hears how the daemon that it asked for has ended."""

from __future__ import annotations

import os

# What ssh itself ends with when it can't start the command.
REFUSED = 255


def answer(agent: int, code: int) -> None:
    """Tell an agent how its daemon ended, and let it end so."""
    try:
        os.write(agent, f"{code if code >= 0 else 128 - code}\n".encode())
    except OSError:
        pass  # the engine is gone, and its agent with it
    os.close(agent)
