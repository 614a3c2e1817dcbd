"""The batch schedulers that can run a job, by name; each is imported only when it is chosen."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from phalanx.runner.batch.scheduling import Scheduler

SCHEDULERS = {
    "slurm": "phalanx.schedulers.slurm",
    "sge": "phalanx.schedulers.sge",
    "yarn": "phalanx.schedulers.yarn",
}


def load(name: str) -> Scheduler:
    """Import a scheduler's module; `name` is one of SCHEDULERS."""
    return importlib.import_module(SCHEDULERS[name])  # pyright: ignore[reportReturnType]
