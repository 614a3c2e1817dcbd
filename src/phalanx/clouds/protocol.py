"""What phalanx needs of a cloud: the protocol that a cloud fulfils, and the records that it answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from phalanx.plan.plan import Facts
    from phalanx.spec.spec import ClusterSpec

CLUSTER_TAG = "phalanx:cluster"


@dataclass(frozen=True)
class StackEvent:
    """One line of the stack's history, as CloudFormation tells it."""

    event_id: str
    time_s: float
    logical_id: str
    physical_id: str
    resource_type: str
    status: str
    reason: str = ""

    @property
    def failed(self) -> bool:
        return self.status.endswith("_FAILED")

    @property
    def is_cause(self) -> bool:
        """A failure of its own, not a resource that was cancelled because another one failed."""
        return self.failed and "cancelled" not in self.reason.lower() and not self.status.startswith("DELETE")


@dataclass(frozen=True)
class StackState:
    """What CloudFormation says of a stack now."""

    name: str
    stack_id: str
    status: str
    reason: str = ""
    created_s: float = 0.0
    outputs: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_progress(self) -> bool:
        return self.status.endswith("_IN_PROGRESS")

    @property
    def creating(self) -> bool:
        return self.status in ("CREATE_IN_PROGRESS", "REVIEW_IN_PROGRESS")

    @property
    def ready(self) -> bool:
        return self.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")

    @property
    def ours(self) -> bool:
        """Made by phalanx: a stack that somebody else gave the same name lacks the tag."""
        return self.tags.get(CLUSTER_TAG) == self.name


@dataclass(frozen=True)
class Resource:
    """One resource that the stack made: enough to ask later whether it is gone."""

    logical_id: str
    physical_id: str
    resource_type: str


@dataclass(frozen=True)
class Heads:
    """The head's group so far: instances `launched`, oldest first; `why` the last change; the newest is `running`."""

    launched: tuple[str, ...] = ()
    why: str = ""
    running: bool = False


@dataclass(frozen=True)
class SshRoute:
    """How ssh reaches the nodes of a cloud: lines for ssh_config, and what stands for a worker's address."""

    options: tuple[str, ...] = ()
    worker_options: tuple[str, ...] = ()
    worker_host: str = "address"  # or "instance_id": the field of the roster's Node


class Cloud(Protocol):
    """What phalanx needs of a cloud. Every method raises CloudError when the cloud refuses or is silent."""

    name: str
    region: str
    poll_interval_s: float

    def facts(self, spec: ClusterSpec, ssh_public_key: str) -> Facts:
        """Read-only look-ups for a plan."""
        ...

    def create_stack(self, name: str, template: str, parameters: Mapping[str, str], bucket: str | None = None) -> str:
        """Start creating and return the stack id; roll back on failure. The stack carries CLUSTER_TAG.

        With a `bucket` the template goes through it, and is deleted there before this returns, or raises.
        """
        ...

    def require_bucket(self, bucket: str) -> None:
        """Raise SpecError unless templates may go through this S3 bucket: the account's own, private, encrypted."""
        ...

    def clear_bucket(self, bucket: str, name: str) -> None:
        """Delete the template that a killed `create_stack` left in the bucket; no error without one."""
        ...

    def describe_stack(self, name_or_id: str) -> StackState | None:
        """The state, or None where no such stack exists (a deleted one is found by its id only)."""
        ...

    def events(self, stack_id: str, after: str | None) -> list[StackEvent]:
        """Oldest first, those after the event id `after`; of a deleted stack too."""
        ...

    def resources(self, stack_id: str) -> list[Resource]: ...

    def delete_stack(self, stack_id: str) -> None:
        """Start deleting; no error when it is gone."""
        ...

    def leftovers(self, cluster: str, resources: Sequence[Resource]) -> list[str]:
        """What still exists of `resources` and of everything tagged with the cluster, one readable line each."""
        ...

    def item(self, table: str, key: str) -> dict[str, str] | None:
        """One item of the roster table, its attributes as text; None when it, or the table, is not there."""
        ...

    def heads(self, group: str) -> Heads:
        """What Auto Scaling's history tells of the head's group."""
        ...

    def boot_logs(self, log_group: str) -> dict[str, str]:
        """Log by stream, a node's by its private address; empty when the group is gone."""
        ...

    def remove_policies(self, role: str) -> tuple[str, ...]:
        """Detach the role's managed policies, delete its inline ones; what was done, such as "detached X"."""
        ...

    def delete_log_group(self, log_group: str) -> None:
        """Delete it; no error when it is gone."""
        ...

    def delete_file_system(self, file_system: str) -> None:
        """Delete it with all data in it; no error when it is gone."""
        ...

    def file_system_place(self, file_system: str) -> tuple[str, str]:
        """Where the data of a file system lies, and the command that deletes it; for people."""
        ...

    def ssh_route(self) -> SshRoute: ...

    def accounts_separated(self) -> bool:
        """Whether the nodes' users are really different users (not in the local cloud's single mode)."""
        ...

    def stop_if_idle(self) -> None:
        """Stop what only runs for clusters, when the last one is gone."""
        ...
