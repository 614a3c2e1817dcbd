"""What phalanx needs of a cloud."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from phalanx.aws.model import ChangeSet, Machines, Resource, SshRoute, StackEvent, StackState

if TYPE_CHECKING:
    from phalanx.node.sigv4 import Credentials
    from phalanx.objects.sent_document import InBucket, PrivateBucket
    from phalanx.plan.machine_images import Image
    from phalanx.plan.money import Prices
    from phalanx.plan.plan import Facts
    from phalanx.spec.spec import ClusterSpec


class Cloud(Machines, Protocol):
    """What phalanx needs of a cloud. Every method raises CloudError when the cloud refuses or does not answer."""

    name: str
    region: str
    poll_interval_s: float

    def limit_attempts(self, most: int) -> None:
        """Try each call at most that often before its failure is reported, if no call was made yet."""
        ...

    def s3_endpoint(self) -> str:
        """Return the URL of S3 in this region, as this machine reaches it."""
        ...

    def user_keys(self) -> Credentials:
        """Return the present credentials of the user who runs phalanx. Raises CloudError."""
        ...

    def require_bucket(self, bucket: str, make: bool = False) -> None:
        """Raise CloudError for a bucket that is missing, forbidden or elsewhere; with `make`, make a local one."""
        ...

    def require_private_bucket(self, bucket: str) -> PrivateBucket:
        """Raise SpecError unless it is a private, encrypted bucket of this account in this region."""
        ...

    def facts(self, spec: ClusterSpec, ssh_public_key: str) -> Facts:
        """Look up what a plan needs; changes nothing."""
        ...

    def promised_bit_s(self, instance_type: str) -> float | None:
        """Return what a node of this type can send at all times, in bits per second; None if nothing is promised."""
        ...

    def image(self, parameter: str) -> Image | None:
        """Return the machine image that the SSM parameter names now; None if there is none, or it is not a real one."""
        ...

    def create_stack(
        self, name: str, template: str | InBucket, parameters: Mapping[str, str], tags: Mapping[str, str] | None = None
    ) -> str:
        """Start creating, with CLUSTER_TAG and `tags`; return the id. Raises StackFailed for a replaced document."""
        ...

    def review_changes(
        self,
        stack: StackState,
        template: str | InBucket,
        parameters: Mapping[str, str],
        kept: Collection[str],
        tags: Mapping[str, str] | None = None,
    ) -> ChangeSet | None:
        """Return what an update of the stack to this template would change; None for nothing. Changes nothing itself.

        Parameters in `kept` have the value that they have now. Raises StackFailed as `create_stack` does.
        """
        ...

    def forget_reviews(self, stack_id: str) -> None:
        """Delete what reviews that were interrupted have left of the stack."""
        ...

    def execute_changes(self, change_set_id: str) -> None:
        """Start the update that was reviewed."""
        ...

    def forget_changes(self, change_set_id: str) -> None:
        """Delete a change set that is not wanted."""
        ...

    def prices(self, types: Collection[str], spot_in: str = "") -> Prices:
        """Return what nodes of these types cost; with `spot_in`, also what spot instances do in that zone now."""
        ...

    def put_object(self, url: str, text: str, bucket: PrivateBucket | None = None) -> None:
        """Write an object of S3; `url` is such as s3://bucket/key."""
        ...

    def delete_object(self, url: str, owner: str = "") -> None:
        """Delete an object of S3; no error when it is gone."""
        ...

    def describe_stack(self, name_or_id: str) -> StackState | None:
        """Return the stack's state, or None if it does not exist. A deleted stack is found only by its id."""
        ...

    def events(self, stack_id: str, after: str | None) -> list[StackEvent]:
        """Return the events after the event id `after`, oldest first; also of a deleted stack."""
        ...

    def resources(self, stack_id: str) -> list[Resource]: ...

    def drift(self, resources: Sequence[Resource]) -> list[str]:
        """Return what people have removed of these by hand and nodes need, a sentence each. Raises CloudError."""
        ...

    def delete_stack(self, stack_id: str) -> None:
        """Start deleting the stack; no error when it is gone."""
        ...

    def leftovers(self, cluster: str, resources: Sequence[Resource]) -> list[str]:
        """Return a line for each of `resources`, and each thing with the cluster's tag, that still exists."""
        ...

    def item(self, table: str, key: str) -> dict[str, str] | None:
        """Return an item of the roster table, its attributes as text; None if it or the table does not exist."""
        ...

    def boot_logs(self, log_group: str) -> dict[str, str]:
        """Return the logs by stream; a node's stream is its private address. Empty when the group is gone."""
        ...

    def allow_ssh(self, group: str, network: str) -> bool:
        """Add a rule to the security group that lets the network reach port 22; return False if there was one."""
        ...

    def remove_policies(self, role: str) -> tuple[str, ...]:
        """Detach the role's managed policies and delete its inline ones; return what was done, such as "detached X"."""
        ...

    def delete_guard_duty(self, vpc: str) -> list[str]:
        """Begin to delete what GuardDuty made in the VPC; return a line for each thing that still exists."""
        ...

    def foreign(self, cluster: str, vpc: str) -> list[str]:
        """Return a line for each thing in the VPC that is not the cluster's own."""
        ...

    def sharers(self, cluster: str, resources: Sequence[Resource]) -> list[str]:
        """Return the other clusters whose nodes are in these resources' VPC or mount their file system."""
        ...

    def delete_role(self, role: str) -> None:
        """Delete the role with its policies; no error when it is gone."""
        ...

    def endpoints(self, vpc: str, subnets: tuple[str, ...] = ()) -> list[str] | None:
        """Return the services with an endpoint in the VPC, or for nodes in `subnets`; None if these have a way out."""
        ...

    def delete_log_group(self, log_group: str) -> None:
        """Delete the log group; no error when it is gone."""
        ...

    def delete_file_system(self, file_system: str) -> None:
        """Delete the file system with all its data; no error when it is gone."""
        ...

    def delete_lustre(self, file_system: str) -> str:
        """Begin to delete a Lustre file system with all its data; return why FSx can't yet, or ""."""
        ...

    def has_lustre(self, file_system: str) -> bool:
        """Whether the Lustre file system is there, if only to be deleted."""
        ...

    def lustre_usd_per_hour(self, cluster: str, file_system: str) -> float:
        """Return what a Lustre file system costs; 0 for one that the cluster did not make."""
        ...

    def file_system_place(self, file_system: str, is_lustre: bool = False) -> tuple[str, str]:
        """Return where a file system's data is, and the command that deletes it, to be shown to the user."""
        ...

    def ssh_route(self, by_session: bool = False) -> SshRoute:
        """Return how ssh reaches a head: by address or, `by_session`, by its id. Raises ClusterError if it can't."""
        ...

    def open_networks(self) -> str:
        """Return why security groups, routes and gateways decide nothing, and what to do; "" where they do."""
        ...

    def accounts_separated(self) -> bool:
        """Whether the nodes' users are really different users (not in the local cloud's single mode)."""
        ...

    def stop_if_idle(self) -> None:
        """Stop what runs only for clusters, if there is no cluster left."""
        ...
