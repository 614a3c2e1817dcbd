"""The Elastic Fabric Adapters of this node, and what its jobs need for them."""

from __future__ import annotations

import os

from phalanx.node import files
from phalanx.node.command import CommandError, run

# A node's path of libfabric, as EFA's installer has it.
_OFFERS = ["/opt/amazon/efa/bin/fi_info", "-p", "efa", "-t", "FI_EP_RDM"]
LIMITS = "/etc/security/limits.d/phalanx.conf"
"""Read by PAM at each login."""


def count(root: str = "") -> int:
    """Return how many adapters the kernel's driver has taken."""
    devices = f"{root}/sys/class/infiniband"
    names = os.listdir(devices) if os.path.isdir(devices) else []
    drivers = (os.path.realpath(f"{devices}/{name}/device/driver") for name in names)
    return sum(os.path.basename(driver) == "efa" for driver in drivers)


def check(wanted: int, user: str, patience_s: float, root: str = "") -> None:
    """See that libfabric offers EFA and that no adapter is missing. Raises CommandError.

    Adapters register memory that can't be swapped, of which PAM allows a login 8 MiB (docs/aws-behaviour.md 2.66).
    """
    run(_OFFERS, patience_s)
    if (found := count(root)) < wanted:
        raise CommandError("ls /sys/class/infiniband", 1, f"{found} of {wanted} Elastic Fabric Adapters are there")
    files.write(root + LIMITS, files.line(user, "-", "memlock", "unlimited"))
