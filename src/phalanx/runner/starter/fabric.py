"""Variables for NCCL and libfabric on a node with an Elastic Fabric Adapter, and for torch's flight recorder."""

from __future__ import annotations

import os

from phalanx.node import adapters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

# The adapters of these types read GPUs' memory; on others, libfabric ends a program that requests it.
_WITH_RDMA = ("p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "p6e-gb200", "trn1", "trn1n", "trn2")


def variables(root: str = "") -> Dict[str, str]:
    """Return defaults for every process of a job; the user's and the node's settings override them."""
    if not (adapters.count(root) and os.path.isdir(f"{root}/dev/infiniband")):
        return {}
    found = {"FI_PROVIDER": "efa", "FI_EFA_FORK_SAFE": "1"}
    if _read(f"{root}/sys/class/dmi/id/product_name").partition(".")[0] in _WITH_RDMA:
        found["FI_EFA_USE_DEVICE_RDMA"] = "1"
    interface = _default_interface(_read(f"{root}/proc/net/route"))
    # NCCL first connects over TCP; with many cards some interfaces lead nowhere (docs/aws-behaviour.md 2.6).
    return {**found, "NCCL_SOCKET_IFNAME": f"={interface}"} if interface else found


def flight_recorder(job_directory: str) -> Dict[str, str]:
    """Return defaults by which torch writes, when a collective of NCCL times out, what each rank had begun.

    The names are those of torch 2.9 and later (ProcessGroupNCCL.hpp, FlightRecorder.hpp); the rank follows the prefix.
    """
    place = os.path.join(job_directory, "flight-rank-")
    return {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": place}


def _default_interface(routes: str) -> str:
    """Return the interface of the default route with the lowest metric."""
    rows = [line.split() for line in routes.splitlines()[1:]]
    found = [(int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"]
    return min(found)[1] if found else ""


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
