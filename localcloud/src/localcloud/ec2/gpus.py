"""Stand-ins for GPUs on nodes whose type has some: `nvidia-smi` lists them, and nothing can compute on them.

Their number is a file in the state directory, so it outlives a stop.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localcloud.nodes.machine import Machine
    from localcloud.weather.sky import Weather

MOST = 16
_NAME = "gpus"
# Loading the driver of eight GPUs takes this long; one machine in ten has lost a GPU (docs/aws-behaviour.md 11.15).
_COLD_S = (35.0, 90.0)
_ONE_LOST = 0.1


def count(state: Path) -> int:
    """Return how many each node of a type with GPUs has; 0 unless a number was kept. Raises ValueError."""
    try:
        return int((state / _NAME).read_text())
    except FileNotFoundError:
        return 0


def keep(state: Path, number: int) -> None:
    """Keep the number for nodes that are launched from now on. Atomic. Raises ValueError."""
    if not 0 <= number <= MOST:
        raise ValueError(f"the number of GPUs is {number}, and may be 0 to {MOST}")
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = state / f"{_NAME}.{os.getpid()}"
    beside.write_text(str(number))
    beside.rename(state / _NAME)


def equip(machine: Machine, name: str, number: int, weather: Weather) -> Machine:
    """Return the machine with this many GPUs called `name`; in bad weather with one less, or late."""
    draw = weather.draw("gpus", machine.instance_id)
    cold_s = draw.seconds(*_COLD_S) if draw else 0.0
    present = number - 1 if draw and draw.happens(_ONE_LOST) else number
    if draw:
        weather.struck("gpus", f"{machine.instance_id} has {present} of {number} GPUs after {cold_s:.1f} s")
    lines = (f"GPU {n}: {name} (UUID: GPU-{machine.instance_id}-{n})\n" for n in range(present))
    return replace(machine, gpus="".join(lines), gpus_after_s=cold_s)
