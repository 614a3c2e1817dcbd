"""The engines that can start a job, by name; each is imported only when it is chosen."""

from __future__ import annotations

import importlib

from phalanx.runner.process import RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from phalanx.runner.process import Launcher

LAUNCHERS = {
    "mpi": "phalanx.launchers.mpi",
    "ray": "phalanx.launchers.ray",
    "dmlc": "phalanx.launchers.dmlc",
    "torchrun": "phalanx.launchers.torchrun",
    "exec": "phalanx.launchers.plain",
    "tensorflow": "phalanx.launchers.tensorflow",
    "jax": "phalanx.launchers.jax",
    "deepspeed": "phalanx.launchers.deepspeed",
    "spark": "phalanx.launchers.spark",
}


def load(name: str) -> Launcher:
    """Import a launcher's module. Raises RefusedError for a name that is not in LAUNCHERS."""
    if name not in LAUNCHERS:
        raise RefusedError(
            f"there is no launcher '{name}'\nThe launchers are: {', '.join(LAUNCHERS)}.", code="no-launcher"
        )
    return importlib.import_module(LAUNCHERS[name])  # pyright: ignore[reportReturnType]
