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


# Public name → module, imported at first use so that `import phalanx` stays fast.
_PUBLIC = {
    "Cluster": "phalanx.api",
    "ClusterSpec": "phalanx.spec.spec",
    "load": "phalanx.spec.spec_load",
    "Plan": "phalanx.plan.plan",
    "make_plan": "phalanx.plan.plan",
    "offline_facts": "phalanx.plan.plan",
    "explain": "phalanx.plan.plan_text",
    "synthesize": "phalanx.template",
    "Note": "phalanx.cluster.bring_up",
    "Proposal": "phalanx.cluster.update",
    "Step": "phalanx.cluster.bring_up",
    "NodeAnswered": "phalanx.cluster.stack",
    "NodeMissing": "phalanx.cluster.stack",
    "Leftovers": "phalanx.cluster.stack",
    "RoleFreed": "phalanx.cluster.stack",
    "ForeignDeleted": "phalanx.cluster.stack",
    "StackEvent": "phalanx.aws.model",
    "JobFuture": "phalanx.jobs.future",
    "JobFailed": "phalanx.jobs.future",
    "Result": "phalanx.jobs.future",
    "JobState": "phalanx.runner.files.job_status",
    "JobStatus": "phalanx.runner.files.job_status",
    "NodeVerdict": "phalanx.runner.files.job_status",
    "Verdict": "phalanx.cluster.gather",
    "Copied": "phalanx.jobs.transfer",
    "TransferError": "phalanx.jobs.transfer",
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
    "NewerFormat": "phalanx.errors",
}

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
