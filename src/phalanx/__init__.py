"""phalanx: one YAML file becomes a distributed deep-learning cluster, and jobs run on it."""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own costs its import, the most expensive one of a short command
if TYPE_CHECKING:
    from typing import Any

    from phalanx.api import Cluster
    from phalanx.errors import PhalanxError
    from phalanx.future import JobFailed, JobFuture, Result
    from phalanx.gather import Verdict
    from phalanx.job import Job, JobSpec, JobState, submit
    from phalanx.node.roster import Node, Roster
    from phalanx.plan import Plan, make_plan
    from phalanx.spec import ClusterSpec, load
    from phalanx.stack import Stack, deploy, destroy, wait_ready
    from phalanx.template import synthesize
    from phalanx.transfer import TransferError

__version__ = "0.1.0"

# Public name → module; imported at first use, so that `import phalanx` costs nothing.
_PUBLIC = {
    "Cluster": "phalanx.api",
    "ClusterSpec": "phalanx.spec",
    "JobSpec": "phalanx.job",
    "load": "phalanx.spec",
    "Plan": "phalanx.plan",
    "make_plan": "phalanx.plan",
    "synthesize": "phalanx.template",
    "Stack": "phalanx.stack",
    "deploy": "phalanx.stack",
    "destroy": "phalanx.stack",
    "wait_ready": "phalanx.stack",
    "Job": "phalanx.job",
    "JobState": "phalanx.job",
    "submit": "phalanx.job",
    "JobFuture": "phalanx.future",
    "JobFailed": "phalanx.future",
    "Result": "phalanx.future",
    "Verdict": "phalanx.gather",
    "TransferError": "phalanx.transfer",
    "Node": "phalanx.node.roster",
    "Roster": "phalanx.node.roster",
    "PhalanxError": "phalanx.errors",
}

# Written out, and imported above, for who reads this without running it: type checkers and editors.
__all__ = [
    "Cluster",
    "ClusterSpec",
    "Job",
    "JobFailed",
    "JobFuture",
    "JobSpec",
    "JobState",
    "Node",
    "PhalanxError",
    "Plan",
    "Result",
    "Roster",
    "Stack",
    "TransferError",
    "Verdict",
    "__version__",
    "deploy",
    "destroy",
    "load",
    "make_plan",
    "submit",
    "synthesize",
    "wait_ready",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'phalanx' has no attribute '{name}'")
    import importlib

    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
