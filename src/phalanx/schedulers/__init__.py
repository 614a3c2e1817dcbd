"""The batch schedulers that a job can be handed to, by name; each is imported only when it is chosen."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from phalanx.node.runner.scheduling import Scheduler

SCHEDULERS = {
    "slurm": "phalanx.schedulers.slurm",
    "sge": "phalanx.schedulers.sge",
    "yarn": "phalanx.schedulers.yarn",
}


def load(name: str) -> Scheduler:
    """The scheduler's module; `name` is one of SCHEDULERS."""
    return cast("Scheduler", importlib.import_module(SCHEDULERS[name]))
