"""The load of a node and of a job's processes there, at one moment: measured by starters, kept and shown elsewhere."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, NamedTuple, Sequence

from phalanx.node.validate import Invalid

if TYPE_CHECKING:
    from typing import Any

_LARGEST = 1e18


class Load(NamedTuple):
    """One sample. Rates are per second, sizes in bytes. A job on a node can forge them, and only those of that node.

    cores, memory, processes     of the job's processes; memory that they share does not count
    node_cores, node_memory, …   of the whole node: cores that were busy, memory in use
    received … written           through the node's network, without loopback, and its disks
    shared_read, shared_written  from and to the shared directory, as NFS; 0 if it is of another kind
    gpus                         that nvidia-smi reports; 0: none, -1: it does not answer
    gpu_busy … gpu_slowed        of all of them: mean utilisation in %, memory, the highest temperature in °C, power in
                                 W, uncorrected memory errors, and how many GPUs the hardware slows down
    step, step_rate              the lowest of the job's ranks there; 0 if they show no steps
    """

    cores: float = 0.0
    memory: float = 0.0
    processes: float = 0.0
    node_cores: float = 0.0
    node_cores_total: float = 0.0
    node_memory: float = 0.0
    node_memory_total: float = 0.0
    received: float = 0.0
    sent: float = 0.0
    read: float = 0.0
    written: float = 0.0
    shared_read: float = 0.0
    shared_written: float = 0.0
    gpus: float = 0.0
    gpu_busy: float = 0.0
    gpu_memory: float = 0.0
    gpu_memory_total: float = 0.0
    gpu_hottest: float = 0.0
    gpu_watts: float = 0.0
    gpu_errors: float = 0.0
    gpu_slowed: float = 0.0
    step: float = 0.0
    step_rate: float = 0.0


PACKED = struct.Struct(f"<{len(Load._fields)}f")
"""A sample as bytes, in frames and in rings."""


def pack(load: Load) -> bytes:
    """Return a sample as bytes."""
    return PACKED.pack(*load)


def unpack(data: bytes) -> Load:
    """Return the sample. Raises Invalid."""
    if len(data) != PACKED.size:
        raise Invalid(f"a load of {len(data)} bytes")
    return checked(PACKED.unpack(data))


def checked(values: Sequence[Any]) -> Load:
    """Return the sample of these values. Raises Invalid for one that no node can have."""
    if len(values) != len(Load._fields):
        raise Invalid(f"a load of {len(values)} values")
    for value in values:
        if type(value) not in (int, float) or not math.isfinite(value) or not -1 <= value <= _LARGEST:
            raise Invalid(f"{value!r:.60} is no load")
    return Load(*values)


def mean(loads: Sequence[Load]) -> Load:
    """Return the mean of samples, of which there is one at least."""
    return Load(*(sum(load[at] for load in loads) / len(loads) for at in range(len(Load._fields))))
