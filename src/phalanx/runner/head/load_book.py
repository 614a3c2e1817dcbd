"""The load of a job on its nodes: the newest samples, what is kept of them in the job's directory, and what follows."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid
from phalanx.runner.files.ring import RingWriter
from phalanx.runner.head.runner_socket import send_text
from phalanx.runner.head.steps import Steps
from phalanx.runner.load import Load, unpack

if TYPE_CHECKING:
    import socket
    from typing import Callable, Dict, List, Sequence, Tuple

RINGS = "load"
_FLUSH_EVERY_S = 15.0
# Below this share of the time, GPUs wait for something; and this many samples say so (two minutes).
_BUSY_PERCENT, _FEWEST_SAMPLES = 30.0, 60
_GIB = 1 << 30


class _Node:
    def __init__(self, path: str) -> None:
        self.ring = RingWriter(path)
        self.load = Load()
        self.at = 0.0
        self.memory = 0.0  # the most, of the job and of the whole node
        self.node_memory = 0.0
        self.busy = 0.0  # the sum of its GPUs' utilisation, of this many samples
        self.samples = 0


def _write(slots: Sequence[Tuple[RingWriter, Dict[int, bytes]]]) -> None:
    for ring, added in slots:
        ring.write(added)


class Loads:
    """Takes the starters' samples; one per runner."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.join(directory, RINGS)
        self._nodes: Dict[str, _Node] = {}
        self._flush_at = time.monotonic() + _FLUSH_EVERY_S
        self._writer = threading.Thread()
        self.steps = Steps()
        self.on_gpus: Callable[[float, float], object] = lambda busy_percent, gpus: None  # noqa: ARG005

    def take(self, node: str, payload: bytes) -> None:
        """Take a sample of a node; one that no node can have is dropped."""
        try:
            load = unpack(payload)
        except Invalid:
            return
        known = self._nodes.setdefault(node, _Node(os.path.join(self._directory, f"{node}.ring")))
        known.load, known.at = load, time.monotonic()
        known.memory = max(known.memory, load.memory)
        known.node_memory = max(known.node_memory, load.node_memory)
        if load.gpus > 0:
            known.busy, known.samples = known.busy + load.gpu_busy, known.samples + 1
            self.on_gpus(load.gpu_busy, load.gpus)
        known.ring.add(int(time.time()), load)
        if time.monotonic() > self._flush_at:
            self.flush()

    def flush(self) -> None:
        """Write the rings in a thread: while the shared directory does not answer, the runner goes on."""
        self._flush_at = time.monotonic() + _FLUSH_EVERY_S
        if not self._writer.is_alive():
            slots = [(node.ring, node.ring.added()) for node in self._nodes.values()]
            self._writer = threading.Thread(target=_write, args=(slots,), daemon=True)
            self._writer.start()

    def end(self) -> None:
        """Write what is left, and wait for that."""
        if self._writer.is_alive():
            self._writer.join()
        _write([(node.ring, node.ring.added(is_last=True)) for node in self._nodes.values()])

    def answer(self, client: socket.socket) -> None:
        """Send a client how far ranks are, and each node's newest sample, with its age and the peak of memory."""
        now = time.monotonic()
        nodes = [
            {"node": name, "age_s": now - one.at, "peak_memory": one.memory, "load": list(one.load)}
            for name, one in self._nodes.items()
        ]
        send_text(client, json.dumps({"nodes": nodes, "ranks": self.steps.answer()}).encode() + b"\n")
        client.close()

    def memory_of(self, node: str) -> str:
        """Return how much of a node's memory was in use at most, for a message; "" if that is not known."""
        known = self._nodes.get(node)
        if known is None or not known.load.node_memory_total:
            return ""
        return f"{known.node_memory / _GIB:.1f} of {known.load.node_memory_total / _GIB:.1f} GiB were in use there"

    def summary(self) -> List[str]:
        """Return what the load of a whole job says: its steps, its peak of memory, and GPUs that waited."""
        lines = self.steps.summary()
        if self._nodes:
            name, most = max(self._nodes.items(), key=lambda item: item[1].node_memory)
            own = most.memory / _GIB
            used = self.memory_of(name).replace("were in use there", f"in use on {name}")
            lines.append(f"memory: at most {used}, {own:.1f} GiB by the job's processes")
        samples = sum(one.samples for one in self._nodes.values())
        if samples:
            busy = sum(one.busy for one in self._nodes.values()) / samples
            waits = busy < _BUSY_PERCENT and samples >= _FEWEST_SAMPLES
            why = ": the ranks wait for something else, such as their data or each other" if waits else ""
            lines.append(f"GPUs: {busy:.0f} % busy{why}")
        if any(one.load.gpus < 0 for one in self._nodes.values()):
            lines.append("GPUs: nvidia-smi does not answer")
        return lines
