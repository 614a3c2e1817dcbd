"""phalanx: one YAML file becomes a distributed deep-learning cluster, and jobs run on it."""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own costs its import, the most expensive one of a short command
if TYPE_CHECKING:
    from typing import Any

    from phalanx.api import Cluster
    from phalanx.bring_up import Note, Step
    from phalanx.cloud import StackEvent
    from phalanx.errors import CloudError, ClusterError, JobError, LocalCloudError, PhalanxError, SpecError, StackFailed
    from phalanx.future import JobFailed, JobFuture, Result
    from phalanx.gather import Verdict
    from phalanx.job_model import JobState, JobStatus, NodeVerdict
    from phalanx.node.roster import Missing, Node, Roster
    from phalanx.plan import Plan, make_plan, offline_facts
    from phalanx.spec import ClusterSpec, load
    from phalanx.stack import Leftovers, NodeAnswered, NodeMissing
    from phalanx.template import synthesize
    from phalanx.transfer import Copied, TransferError

__version__ = "0.1.0"

# Public name → module; imported at first use, so that `import phalanx` costs nothing.
_PUBLIC = {
    "Cluster": "phalanx.api",
    "ClusterSpec": "phalanx.spec",
    "load": "phalanx.spec",
    "Plan": "phalanx.plan",
    "make_plan": "phalanx.plan",
    "offline_facts": "phalanx.plan",
    "synthesize": "phalanx.template",
    "Note": "phalanx.bring_up",
    "Step": "phalanx.bring_up",
    "NodeAnswered": "phalanx.stack",
    "NodeMissing": "phalanx.stack",
    "Leftovers": "phalanx.stack",
    "StackEvent": "phalanx.cloud",
    "JobFuture": "phalanx.future",
    "JobFailed": "phalanx.future",
    "Result": "phalanx.future",
    "JobState": "phalanx.job_model",
    "JobStatus": "phalanx.job_model",
    "NodeVerdict": "phalanx.job_model",
    "Verdict": "phalanx.gather",
    "Copied": "phalanx.transfer",
    "TransferError": "phalanx.transfer",
    "Node": "phalanx.node.roster",
    "Roster": "phalanx.node.roster",
    "Missing": "phalanx.node.roster",
    "PhalanxError": "phalanx.errors",
    "SpecError": "phalanx.errors",
    "CloudError": "phalanx.errors",
    "StackFailed": "phalanx.errors",
    "LocalCloudError": "phalanx.errors",
    "ClusterError": "phalanx.errors",
    "JobError": "phalanx.errors",
}

# Written out, and imported above, for type checkers and editors, which read this file without running it.
__all__ = [
    "CloudError",
    "Cluster",
    "ClusterError",
    "ClusterSpec",
    "Copied",
    "JobError",
    "JobFailed",
    "JobFuture",
    "JobState",
    "JobStatus",
    "Leftovers",
    "LocalCloudError",
    "Missing",
    "Node",
    "NodeAnswered",
    "NodeMissing",
    "NodeVerdict",
    "Note",
    "PhalanxError",
    "Plan",
    "Result",
    "Roster",
    "SpecError",
    "StackEvent",
    "StackFailed",
    "Step",
    "TransferError",
    "Verdict",
    "__version__",
    "load",
    "make_plan",
    "offline_facts",
    "synthesize",
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
