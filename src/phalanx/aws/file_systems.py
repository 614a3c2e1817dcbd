"""EFS file systems that the cluster's stack did not create: the user's own, or kept by an earlier `down`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phalanx.aws import tags
from phalanx.errors import SpecError
from phalanx.plan.mount_targets import MountTarget

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws


def kept(api: Aws, cluster: str) -> str:
    """Return the newest unused file system with the cluster's tag, or "". Only called when there is no stack."""
    found = [
        f
        for f in api.pages("efs", "describe_file_systems", "FileSystems")
        if tags.is_of(f, cluster) and f["LifeCycleState"] == "available"
    ]
    free = [f for f in found if not f["NumberOfMountTargets"]]
    return max(free, key=lambda f: f["CreationTime"])["FileSystemId"] if free else ""


def mount_targets(api: Aws, file_system: str, cluster: str) -> tuple[MountTarget, ...]:
    """Return a file system's mount targets, but not those of the cluster's stack. Raises SpecError.

    With its own as the user's, an update of the stack would remove it.
    """
    answer = api.exists("efs", "describe_file_systems", FileSystemId=file_system)
    if not answer or not answer["FileSystems"]:
        raise SpecError(
            f"file_system: {file_system} does not exist in {api.region}",
            "Remove the line, and `up` creates one.",
            code="no-file-system",
        )
    found = api.call("efs", "describe_mount_targets", FileSystemId=file_system)["MountTargets"]
    targets = [MountTarget(one["AvailabilityZoneName"], one["VpcId"], _groups(api, one)) for one in found]
    own = _of_cluster(api, cluster, [group for target in targets for group in target.groups])
    return tuple(target for target in targets if not own.intersection(target.groups))


def stored_gib(api: Aws, file_system: str) -> float:
    """Return the size of a file system's data."""
    answer = api.exists("efs", "describe_file_systems", FileSystemId=file_system) or {"FileSystems": []}
    return sum(one["SizeInBytes"]["Value"] for one in answer["FileSystems"]) / 2**30


def delete(api: Aws, file_system: str) -> None:
    """Delete the file system with all its data; no error when it is gone.

    One that is gone has no tag by which a policy could allow to delete it: so whoever asks looks first.
    """
    if api.exists("efs", "describe_file_systems", FileSystemId=file_system):
        api.exists("efs", "delete_file_system", FileSystemId=file_system)


def _groups(api: Aws, target: dict[str, Any]) -> tuple[str, ...]:
    asked = {"MountTargetId": target["MountTargetId"]}
    return tuple(api.call("efs", "describe_mount_target_security_groups", **asked)["SecurityGroups"])


def _of_cluster(api: Aws, cluster: str, groups: list[str]) -> set[str]:
    """Return which of these security groups are of the cluster's stack."""
    if not groups:
        return set()
    chosen = [{"Name": "group-id", "Values": groups}, *tags.filters(cluster)]
    found = api.call("ec2", "describe_security_groups", Filters=chosen)
    return {group["GroupId"] for group in found["SecurityGroups"]}
