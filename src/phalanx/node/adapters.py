"""The Elastic Fabric Adapters of this node."""

from __future__ import annotations

import os


def count(root: str = "") -> int:
    """Return how many adapters the kernel's driver has taken."""
    devices = f"{root}/sys/class/infiniband"
    names = os.listdir(devices) if os.path.isdir(devices) else []
    drivers = (os.path.realpath(f"{devices}/{name}/device/driver") for name in names)
    return sum(os.path.basename(driver) == "efa" for driver in drivers)
