"""phalanx: one YAML file becomes a distributed deep-learning cluster, and jobs run on it."""

from __future__ import annotations

import importlib

from phalanx.version import __version__

TYPE_CHECKING = False  # Importing typing would take most of the time of a short command.
if TYPE_CHECKING:
    from typing import Any

    from phalanx.api import Cluster
    from phalanx.aws.model import StackEvent
    from phalanx.cluster.bring_up import Note, Step
    from phalanx.cluster.gather import Verdict
    from phalanx.cluster.stack import ForeignDeleted, Leftovers, NodeAnswered, NodeMissing, RoleFreed
    from phalanx.cluster.update import Proposal
    from phalanx.errors import (
        CloudError,
        ClusterError,
        JobError,
        LocalCloudError,
        NewerFormat,
        PhalanxError,
        SpecError,
        StackFailed,
    )
    from phalanx.jobs.future import JobFailed, JobFuture, Result
    from phalanx.jobs.transfer import Copied, TransferError
    from phalanx.node.roster import Missing, Node, Roster
    from phalanx.plan.plan import Plan, make_plan, offline_facts
    from phalanx.plan.plan_text import explain
    from phalanx.runner.files.job_status import JobState, JobStatus, NodeVerdict
    from phalanx.spec.spec import ClusterSpec
    from phalanx.spec.spec_load import load
    from phalanx.template import synthesize


# Module → its public names, imported at first use so that `import phalanx` stays fast.
_BY_MODULE = {
    "phalanx.api": ("Cluster",),
    "phalanx.aws.model": ("StackEvent",),
    "phalanx.cluster.bring_up": ("Note", "Step"),
    "phalanx.cluster.gather": ("Verdict",),
    "phalanx.cluster.stack": ("ForeignDeleted", "Leftovers", "NodeAnswered", "NodeMissing", "RoleFreed"),
    "phalanx.cluster.update": ("Proposal",),
    "phalanx.errors": (
        "CloudError",
        "ClusterError",
        "JobError",
        "LocalCloudError",
        "NewerFormat",
        "PhalanxError",
        "SpecError",
        "StackFailed",
    ),
    "phalanx.jobs.future": ("JobFailed", "JobFuture", "Result"),
    "phalanx.jobs.transfer": ("Copied", "TransferError"),
    "phalanx.node.roster": ("Missing", "Node", "Roster"),
    "phalanx.plan.plan": ("Plan", "make_plan", "offline_facts"),
    "phalanx.plan.plan_text": ("explain",),
    "phalanx.runner.files.job_status": ("JobState", "JobStatus", "NodeVerdict"),
    "phalanx.spec.spec": ("ClusterSpec",),
    "phalanx.spec.spec_load": ("load",),
    "phalanx.template": ("synthesize",),
}
_PUBLIC = {name: module for module, names in _BY_MODULE.items() for name in names}

# Listed here and imported above for type checkers and editors, which read this file without running it.
__all__ = [
    "CloudError",
    "Cluster",
    "ClusterError",
    "ClusterSpec",
    "Copied",
    "ForeignDeleted",
    "JobError",
    "JobFailed",
    "JobFuture",
    "JobState",
    "JobStatus",
    "Leftovers",
    "LocalCloudError",
    "Missing",
    "NewerFormat",
    "Node",
    "NodeAnswered",
    "NodeMissing",
    "NodeVerdict",
    "Note",
    "PhalanxError",
    "Plan",
    "Proposal",
    "Result",
    "RoleFreed",
    "Roster",
    "SpecError",
    "StackEvent",
    "StackFailed",
    "Step",
    "TransferError",
    "Verdict",
    "__version__",
    "explain",
    "load",
    "make_plan",
    "offline_facts",
    "synthesize",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'phalanx' has no attribute '{name}'")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
