"""Asks an engine about itself on the head, before the launcher is called."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from phalanx.runner.loop import is_readable
from phalanx.runner.system import spawn

if TYPE_CHECKING:
    from typing import Dict, Sequence

_WITHIN_S = 10.0


def output_of(argv: Sequence[str], env: Dict[str, str]) -> str:
    """Return what the command prints, "" when it is missing or prints nothing in time."""
    out_read, out_write = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    spawn(argv, env, (null, out_write, null))
    os.close(out_write)
    os.close(null)
    deadline = time.monotonic() + _WITHIN_S
    text = b""
    while is_readable(out_read, deadline - time.monotonic()):
        data = os.read(out_read, 4096)
        if not data:
            break
        text += data
    os.close(out_read)
    return text.decode(errors="replace")
