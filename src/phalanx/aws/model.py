"""What AWS's services return, as phalanx needs it, and what it needs of the service that makes machines."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from phalanx.node.workers_group import nodes_of
from phalanx.spec.own_tags import CLUSTER_TAG

if TYPE_CHECKING:
    from phalanx.plan.machine_images import Image
    from phalanx.plan.money import Prices, Use
    from phalanx.plan.plan import Facts
    from phalanx.spec.spec import ClusterSpec


IN_REVIEW = "REVIEW_IN_PROGRESS"
"""The status of a stack of which there is nothing but a name and change sets."""


@dataclass(frozen=True)
class StackEvent:
    """An event of a stack, as CloudFormation reports it."""

    event_id: str
    time_s: float
    logical_id: str
    physical_id: str
    resource_type: str
    status: str
    reason: str = ""

    def __str__(self) -> str:
        reason = f"\n{' ' * 11}{self.reason}" if self.reason and self.failed else ""
        return f"{self.status:<18}  {self.logical_id} ({self.resource_type.removeprefix('AWS::')}){reason}"

    @property
    def failed(self) -> bool:
        return self.status.endswith("_FAILED")

    @property
    def is_unexplained(self) -> bool:
        """Whether CloudFormation keeps the reason among the operation's other events (docs/aws-behaviour.md 1.50)."""
        return self.reason.startswith("Validation failure detected")

    @property
    def is_cause(self) -> bool:
        """Whether the resource itself failed, and was not cancelled because another one did."""
        return self.failed and "cancelled" not in self.reason.lower() and not self.status.startswith("DELETE")


@dataclass(frozen=True)
class StackState:
    """The state of a stack, as CloudFormation reports it."""

    name: str
    stack_id: str
    status: str
    reason: str = ""
    created_s: float = 0.0
    outputs: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    updated_s: float = 0.0
    resolved: Mapping[str, str] = field(default_factory=dict)
    """What the parameters that name one of Systems Manager's stood for when the stack was last changed."""

    @property
    def in_progress(self) -> bool:
        return self.status.endswith("_IN_PROGRESS")

    @property
    def creating(self) -> bool:
        return self.status == "CREATE_IN_PROGRESS"

    @property
    def in_review(self) -> bool:
        """Whether there is nothing of it but a name and change sets, none of which was executed."""
        return self.status == IN_REVIEW

    @property
    def updating(self) -> bool:
        return self.in_progress and self.status.startswith("UPDATE_")

    @property
    def ready(self) -> bool:
        return self.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")

    @property
    def nodes(self) -> int:
        """How many nodes the stack was requested with; `phalanx scale` changes no parameter."""
        return nodes_of(int(self.parameters["Workers"]))

    @property
    def emr_cluster(self) -> str:
        """The EMR cluster that the stack has adopted, which goes on without it; "" for any other stack."""
        return self.parameters.get("EmrCluster", "")

    @property
    def ours(self) -> bool:
        """Whether the stack is of phalanx's template; a ready one from the console has its outputs, and no tag."""
        return self.tags.get(CLUSTER_TAG) == self.name or {"RosterTable", "AgentVersion"} <= self.outputs.keys()


@dataclass(frozen=True)
class Validation:
    """What a validation of CloudFormation, or a hook of the account, says before anything is made.

    `path` leads to the place in the document, "" if none is named. What does not block is a warning.
    """

    logical_id: str
    resource_type: str
    reason: str
    name: str = ""
    path: str = ""
    blocks: bool = True

    def __str__(self) -> str:
        what = f"{self.logical_id} ({self.resource_type}): " if self.logical_id else ""
        return f"{what}{self.reason}{f' (at {self.path})' if self.path else ''}"


@dataclass(frozen=True)
class StackChange:
    """What an update does with a resource: `action` is Add, Modify or Remove; `scope` are the parts that change.

    `replacement` is True, False or Conditional, "" for a resource that is added or removed.
    """

    action: str
    logical_id: str
    resource_type: str
    replacement: str = ""
    scope: tuple[str, ...] = ()

    @property
    def is_subscription(self) -> bool:
        """Whether it is somebody's mail address, which no node uses."""
        return self.resource_type == "AWS::SNS::Subscription"


@dataclass(frozen=True)
class ChangeSet:
    """What an update would change of a stack, and the id with which it is executed."""

    change_set_id: str
    changes: tuple[StackChange, ...]


@dataclass(frozen=True)
class Resource:
    """A resource of a stack, with what is needed to check later that it is gone."""

    logical_id: str
    physical_id: str
    resource_type: str


@dataclass(frozen=True)
class Heads:
    """The history of the head's group.

    `launched`: its instances, oldest first. `why`: the cause of the last termination. `running`: the newest runs.
    """

    launched: tuple[str, ...] = ()
    why: str = ""
    running: bool = False


@dataclass(frozen=True)
class Running:
    """How a cluster's groups stand. `nodes`: how many instances they are to have, the head included.

    `stopped`: the head's group is at 0. `end_s`: when a scheduled action lowers both to 0, in seconds since the epoch;
    None if none does. `ended`: that the service has ended the cluster for good, and why; "" else.
    `idle_since_s`: when the last node of a stopped cluster had ended; None while one runs. `kept_until_s`: until when a
    user wants it kept, 0 for nothing.
    """

    nodes: int
    stopped: bool
    end_s: float | None
    ended: str = ""
    idle_since_s: float | None = None
    kept_until_s: float = 0.0


@dataclass(frozen=True)
class ScalingActivity:
    """An activity of a group of machines. Times are in seconds since the epoch; one that goes on has no end."""

    began_s: float
    ended_s: float | None
    description: str
    cause: str
    status: str
    message: str = ""
    source: str = "Auto Scaling"


class Machines(Protocol):
    """What phalanx needs of the service that makes a cluster's machines: Auto Scaling, or another one."""

    @property
    def admin_user(self) -> str:
        """The user who administers the machines; "" for the one that the image has for that."""
        ...

    def require(self, spec: ClusterSpec) -> tuple[str, str]:
        """Return the ARN and the id of the nodes' role, if the spec names one; ("", "") else.

        Raises SpecError with what the service would refuse of the spec.
        """
        ...

    def running(self, cluster: str) -> Running | None:
        """Return the state of the cluster's groups; None if it has none."""
        ...

    def use(self, cluster: str, file_system: str, now_s: float) -> Use:
        """Return what the cluster has used until now; `file_system` may be empty."""
        ...

    def end_at(self, cluster: str, at_s: float | None) -> None:
        """Have both groups lowered to 0 at this time, in seconds since the epoch; None: never."""
        ...

    def keep_until(self, cluster: str, at_s: float) -> None:
        """Have a stopped cluster not removed before this time, in seconds since the epoch."""
        ...

    def start_nodes(self, cluster: str, nodes: int) -> None:
        """Start this many nodes of a stopped cluster."""
        ...

    def allow_nodes(self, cluster: str, nodes: int) -> None:
        """Let the cluster have this many nodes at most, where its service knows such a bound."""
        ...

    def outdated(self, cluster: str) -> list[str]:
        """Return the ids of machines that were made with other settings than their group has now."""
        ...

    def activities(self, group: str) -> list[ScalingActivity]:
        """Return what groups of machines of this name did, newest first, with those that were deleted."""
        ...

    def leftovers(self, cluster: str, resources: Sequence[Resource]) -> Iterator[str]:
        """Yield a line for each of its own that the service still has of a cluster, and that would start machines."""
        ...

    def clusters(self) -> Iterator[str]:
        """Yield the names of the clusters of which its own speak, which may have no machines yet."""
        ...

    def heads(self, group: str) -> Heads:
        """Return the history of the head, from the physical id of the resource that makes it."""
        ...


class Site(Protocol):
    """What differs between an account of AWS and the local cloud on this machine."""

    def facts(self, spec: ClusterSpec, ssh_public_key: str) -> Facts:
        """Look up what a plan needs; changes nothing."""
        ...

    def promised_bit_s(self, instance_type: str) -> float | None:
        """Return what a node of this type can send at all times, in bits per second; None if nothing is promised."""
        ...

    def image(self, parameter: str) -> Image | None:
        """Return the machine image that the SSM parameter names now; None if there is none, or it is not a real one."""
        ...

    def prices(self, types: Collection[str], spot_in: str = "") -> Prices:
        """Return what nodes of these types cost; with `spot_in`, also what spot instances do in that zone now."""
        ...

    def require_bucket(self, bucket: str, make: bool = False) -> None:
        """Raise CloudError for a bucket that is missing, forbidden or elsewhere; with `make`, make a local one."""
        ...

    def require_private_bucket(self, bucket: str) -> PrivateBucket:
        """Raise SpecError unless it is a private, encrypted bucket of this account in this region."""
        ...

    def ssh_route(self, by_session: bool = False) -> tuple[str, ...]:
        """Return ssh's options to reach a head: by address or, `by_session`, by its id. Raises ClusterError."""
        ...

    def file_system_place(self, file_system: str, is_lustre: bool = False) -> tuple[str, str]:
        """Return where a file system's data is, and the command that deletes it, to be shown to the user."""
        ...

    def open_networks(self) -> str:
        """Return why security groups, routes and gateways decide nothing, and what to do; "" where they do."""
        ...

    def accounts_separated(self) -> bool:
        """Whether the nodes' users are really different users (not in the local cloud's single mode)."""
        ...

    def require_full_system(self, image: str) -> None:
        """Raise LocalCloudError if machines here can't run an image with systemd."""
        ...

    def kept_contents(self, image_id: str) -> dict[str, Any]:
        """Return what an image contains, where its files are at hand; {} elsewhere."""
        ...

    def is_off(self) -> bool:
        """Whether nothing runs there, so that no cluster can exist. Never true of AWS."""
        ...

    def stop_if_idle(self) -> None:
        """Stop what runs only for clusters, if there is no cluster left."""
        ...


@dataclass(frozen=True)
class PrivateBucket:
    """What writing to a bucket names: the account that owns it, and how it encrypts, in S3's words."""

    owner: str
    encryption: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class InBucket:
    """A document, and where in S3 it is for CloudFormation."""

    url: str
    document: str
