"""Sums over all ranks through an engine's own backend: PyTorch with NCCL or gloo, or MPI."""

from __future__ import annotations

import ctypes
import datetime
import glob
import os
import re
import socket
import time
from typing import Any, Dict, List, Set

SIZES_BYTES = (4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
_REPEATS = 3
# Of meeting the other ranks, and of each sum.
_WITHIN_S = 60
# Every component of Open MPI has a variable of this name.
_VERSION = "_major_version"
_WITHIN_A_NODE = {"self", "sm", "vader", "smcuda"}
_MPI_NETWORKS = {"tcp": "TCP", "ofi": "Libfabric"}


def started_by_mpi() -> bool:
    return "OMPI_COMM_WORLD_RANK" in os.environ or "PMI_RANK" in os.environ


class Mpi:
    """MPI through mpi4py. Raises ImportError without it."""

    name = "mpi"

    def __init__(self) -> None:
        from mpi4py import MPI  # pyright: ignore[reportMissingImports]

        self._mpi, self.world = MPI, MPI.COMM_WORLD

    def prepare(self, size_bytes: int) -> Any:
        return bytearray(size_bytes), bytearray(size_bytes)

    def sum(self, buffers: Any) -> None:
        sent, received = buffers
        self.world.Allreduce([sent, self._mpi.FLOAT], [received, self._mpi.FLOAT])

    def transport(self) -> str:
        """Return what carries messages between nodes, and the library's version; only that if it doesn't say."""
        version = str(self._mpi.Get_library_version()).partition(",")[0].splitlines()[0]
        found = network_of_mpi(open_components(str(self._mpi.__file__))) if version.startswith("Open MPI") else ""
        return f"{found} ({version})" if found else version

    def close(self) -> None:
        """Do nothing: MPI ends with the process."""


class Torch:
    """PyTorch: NCCL if this node has GPUs, else gloo. Raises ImportError without it."""

    def __init__(self, rank: int, size: int, address: str, port: int) -> None:
        self._log = f"{os.environ.get('TMPDIR', '/tmp')}/nccl-{os.getpid()}.log"
        # NCCL reports only in its log which network it uses (docs/aws-behaviour.md 2.47).
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=self._log)
        import torch.distributed  # here, after its variables are set

        self._torch = torch
        self._device = "cuda:0" if torch.cuda.is_available() else "cpu"
        self.name = "nccl" if torch.cuda.is_available() else "gloo"
        torch.distributed.init_process_group(
            self.name,
            init_method=f"tcp://{address}:{port}",
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(seconds=_WITHIN_S),
        )

    def prepare(self, size_bytes: int) -> Any:
        return self._torch.zeros(size_bytes // 4, device=self._device)

    def sum(self, buffers: Any) -> None:
        self._torch.distributed.all_reduce(buffers)
        if self.name == "nccl":
            self._torch.cuda.synchronize()

    def transport(self) -> str:
        """Return what NCCL says it uses: Socket, AWS Libfabric, IB …; gloo has only TCP."""
        return network_of(_read(self._log)) if self.name == "nccl" else "TCP"

    def close(self) -> None:
        # gloo's threads let go of the last tensor first, or the process may hang or abort here (pytorch issue 190489).
        time.sleep(1)
        self._torch.distributed.destroy_process_group()


def open_components(library: str) -> Set[str]:
    """Return the components that Open MPI kept open, as "btl_tcp"; none if it doesn't say. MPI must be initialized."""
    try:
        mpi = ctypes.CDLL(library)
        count, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        if mpi.MPI_T_init_thread(0, ctypes.byref(count)) or mpi.MPI_T_cvar_get_num(ctypes.byref(count)):
            return set()
    except (OSError, AttributeError):
        return set()
    names: Set[str] = set()
    for number in range(count.value):
        size = ctypes.c_int(len(name))
        # Of a component that was closed, the variables are no longer valid (docs/aws-behaviour.md 2.64).
        if mpi.MPI_T_cvar_get_info(number, name, ctypes.byref(size), *[None] * 7) == 0:
            names.add(name.value.decode(errors="replace"))
    mpi.MPI_T_finalize()
    return {one[: -len(_VERSION)] for one in names if one.endswith(_VERSION)}


def network_of_mpi(components: Set[str]) -> str:
    """Return what Open MPI's components send with between nodes: TCP, UCX, Libfabric …, or "" if that is not clear."""
    layers = components & {"pml_ob1", "pml_cm", "pml_ucx"}
    if layers == {"pml_ucx"}:
        return "UCX"
    framework = {"pml_ob1": "btl_", "pml_cm": "mtl_"}.get(layers.pop(), "") if len(layers) == 1 else ""
    used = {one[4:] for one in components if framework and one.startswith(framework)} - _WITHIN_A_NODE
    return _MPI_NETWORKS.get(found := used.pop(), found) if len(used) == 1 else ""


def network_of(log: str) -> str:
    """Return the network that NCCL's log names, or "unknown"."""
    found = re.findall(r"Using network (.+)", log)
    return found[-1].strip() if found else "unknown"


def times_s(engine: Any) -> List[Dict[str, float]]:
    """Return the time of a sum for each size; the first one of a size is not counted."""
    found: List[Dict[str, float]] = []
    for size_bytes in SIZES_BYTES:
        buffers = engine.prepare(size_bytes)
        engine.sum(buffers)
        began_s = time.perf_counter()
        for _ in range(_REPEATS):
            engine.sum(buffers)
        found.append({"bytes": size_bytes, "s": (time.perf_counter() - began_s) / _REPEATS})
    return found


def has_efa(root: str = "") -> bool:
    """Whether this node has an Elastic Fabric Adapter."""
    drivers = glob.glob(f"{root}/sys/class/infiniband/*/device/driver")
    return any(os.path.basename(os.path.realpath(driver)) == "efa" for driver in drivers)


def free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        return probe.getsockname()[1]


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
