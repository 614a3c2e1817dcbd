"""What running jobs do as metrics for Prometheus, read from the cluster when Prometheus asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from phalanx.errors import PhalanxError

if TYPE_CHECKING:
    from phalanx.jobs.loads import NodeLoad, Seen

# Several programs may ask at once; the cluster is asked once in this time.
_FRESH_S = 1.0
_MIB = 1 << 20
# Name → help, labels, and the field of a load, or what is made of one. Of the node, and of a job on it.
_OF_NODES: dict[str, tuple[str, Callable[[NodeLoad], float]]] = {
    "phalanx_node_cores": ("Cores of the node.", lambda one: one.load.node_cores_total),
    "phalanx_node_cores_busy": ("Cores of the node that were busy.", lambda one: one.load.node_cores),
    "phalanx_node_memory_bytes": ("Memory of the node.", lambda one: one.load.node_memory_total),
    "phalanx_node_memory_used_bytes": ("Memory of the node in use.", lambda one: one.load.node_memory),
    "phalanx_node_network_received_bytes_per_second": ("Received by the node.", lambda one: one.load.received),
    "phalanx_node_network_sent_bytes_per_second": ("Sent by the node.", lambda one: one.load.sent),
    "phalanx_node_disk_read_bytes_per_second": ("Read from the node's disks.", lambda one: one.load.read),
    "phalanx_node_disk_written_bytes_per_second": ("Written to the node's disks.", lambda one: one.load.written),
    "phalanx_node_shared_read_bytes_per_second": ("Read over NFS by the node.", lambda one: one.load.shared_read),
    "phalanx_node_shared_written_bytes_per_second": ("Written over NFS.", lambda one: one.load.shared_written),
}
_OF_JOBS: dict[str, tuple[str, Callable[[NodeLoad], float]]] = {
    "phalanx_job_cores_busy": ("Cores that the job's processes use there.", lambda one: one.load.cores),
    "phalanx_job_memory_bytes": ("Memory of the job's processes there.", lambda one: one.load.memory),
    "phalanx_job_memory_peak_bytes": ("The most memory that they have used.", lambda one: one.peak_memory),
    "phalanx_job_processes": ("The job's processes there.", lambda one: one.load.processes),
    "phalanx_job_sample_age_seconds": ("How old these figures are.", lambda one: one.age_s),
}
# As NVIDIA's dcgm-exporter names them, in its units. Each stands for all GPUs of the node.
_OF_GPUS: dict[str, tuple[str, Callable[[NodeLoad], float]]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("GPU utilization (in %), the mean.", lambda one: one.load.gpu_busy),
    "DCGM_FI_DEV_FB_USED": ("Framebuffer memory used (in MiB).", lambda one: one.load.gpu_memory / _MIB),
    "DCGM_FI_DEV_FB_FREE": (
        "Framebuffer memory free (in MiB).",
        lambda one: max(0.0, one.load.gpu_memory_total - one.load.gpu_memory) / _MIB,
    ),
    "DCGM_FI_DEV_GPU_TEMP": ("GPU temperature (in C), the highest.", lambda one: one.load.gpu_hottest),
    "DCGM_FI_DEV_POWER_USAGE": ("Power draw (in W).", lambda one: one.load.gpu_watts),
}


class Metrics:
    """Asks for what jobs do, and returns it as Prometheus' text; callable from several threads."""

    def __init__(self, cluster: str, look: Callable[[], Seen], on_error: Callable[[str], None]) -> None:
        self._cluster, self._look, self._on_error = cluster, look, on_error
        self._lock = threading.Lock()
        self._text, self._at = b"", 0.0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)  # pyright: ignore[reportArgumentType]

    def text(self) -> bytes:
        """Return the metrics; only `phalanx_up 0` while the cluster gives no answer."""
        with self._lock:
            if not self._text or time.monotonic() > self._at + _FRESH_S:
                self._text, self._at = generate_latest(self._registry), time.monotonic()
            return self._text

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing: it is not asked for what it has before somebody wants to know."""
        return []

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield the metrics of this moment."""
        found: Seen | None = None
        try:
            found = self._look()
        except PhalanxError as error:
            self._on_error(error.message)
        up = GaugeMetricFamily("phalanx_up", "Whether the cluster answers.", labels=("cluster",))
        up.add_metric((self._cluster,), float(found is not None))
        yield up
        if found:
            yield from self._loads(found)
            yield from self._ranks(found)

    def _loads(self, found: Seen) -> Iterable[GaugeMetricFamily]:
        nodes = list({one.node: one for one in found.loads}.values())
        for name, (meaning, value) in _OF_NODES.items():
            yield self._family(name, meaning, ("node",), [((one.node,), value(one)) for one in nodes])
        for name, (meaning, value) in _OF_JOBS.items():
            yield self._family(
                name, meaning, ("node", "job_id"), [((one.node, one.job), value(one)) for one in found.loads]
            )
        with_gpus = [one for one in nodes if one.load.gpus > 0]
        for name, (meaning, value) in _OF_GPUS.items():
            yield self._family(
                name, meaning, ("Hostname", "gpu"), [((one.node, "all"), value(one)) for one in with_gpus]
            )

    def _ranks(self, found: Seen) -> Iterable[GaugeMetricFamily]:
        ranks = [((one.node, job, one.rank), one) for job, ranks in found.ranks.items() for one in ranks]
        # Not "job", which Prometheus sets itself.
        labels = ("node", "job_id", "rank")
        steps = [(names, float(one.progress.step)) for names, one in ranks if one.progress.step is not None]
        yield self._family("phalanx_rank_step", "The rank's last step.", labels, steps)
        rates = [(names, one.rate) for names, one in ranks if one.progress.step is not None]
        yield self._family("phalanx_rank_steps_per_second", "Its steps in the last minute.", labels, rates)
        values = [((*names, name), value) for names, one in ranks for name, value in one.progress.values.items()]
        yield self._family("phalanx_rank_value", "What its script says of itself.", (*labels, "name"), values)

    def _family(
        self, name: str, meaning: str, labels: tuple[str, ...], values: list[tuple[tuple[str, ...], float]]
    ) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, meaning, labels=("cluster", *labels))
        for names, value in values:
            family.add_metric((self._cluster, *names), value)
        return family
