"""File systems of FSx for Lustre, as FSx describes them: those of clusters, and one that a spec names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from phalanx.aws import tags
from phalanx.aws.refusals import code
from phalanx.data import table
from phalanx.errors import CloudError, SpecError
from phalanx.plan import lustre_storage
from phalanx.plan.lustre_storage import LustreFileSystem

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws


def describe(api: Aws, file_system: str) -> dict[str, Any] | None:
    """Return a file system of FSx; None if there is none."""
    answer = api.exists("fsx", "describe_file_systems", FileSystemIds=[file_system])
    return next(iter(answer["FileSystems"]), None) if answer else None


def tagged(api: Aws) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the file systems that clusters have made, each with its cluster's name."""
    for found in api.pages("fsx", "describe_file_systems", "FileSystems"):
        if cluster := tags.cluster_of(found):
            yield found, cluster


def find(api: Aws, file_system: str) -> LustreFileSystem:
    """Return the file system that a spec names. Raises SpecError."""
    found = describe(api, file_system)
    if not found or found["FileSystemType"] != "LUSTRE":
        raise SpecError(
            f"file_system: FSx has no Lustre file system {file_system} in {api.region}",
            "Remove the line, and `up` creates one.",
            code="no-file-system",
        )
    wanted = [{"Name": "network-interface-id", "Values": found.get("NetworkInterfaceIds", [])}]
    interfaces = api.pages("ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=wanted)
    groups = dict.fromkeys(group["GroupId"] for one in interfaces for group in one["Groups"])
    name = found["LustreConfiguration"]["MountName"]
    return LustreFileSystem(found["Lifecycle"], found["DNSName"], name, found["VpcId"], tuple(groups))


def delete(api: Aws, file_system: str) -> str:
    """Begin to delete a file system; return why FSx refuses, as during an import (docs/aws-behaviour.md 4.14)."""
    try:
        api.exists("fsx", "delete_file_system", FileSystemId=file_system)
    except CloudError as error:
        if code(error.__cause__) == "BadRequest":
            found = describe(api, file_system)
            return error.message if found and found["Lifecycle"] != "DELETING" else ""
        raise
    return ""


def usd_per_hour(api: Aws, cluster: str, file_system: str) -> float:
    """Return what a file system costs; 0 for one that the cluster did not make."""
    found = describe(api, file_system)
    if not found or tags.cluster_of(found) != cluster:
        return 0.0
    made = found["LustreConfiguration"]
    throughput = made.get("PerUnitStorageThroughput") or 0
    month = lustre_storage.usd_per_month(found["StorageCapacity"], made["DeploymentType"], throughput)
    return lustre_storage.hourly(month) or 0.0


def used_gib(api: Aws, quota: str, cluster: str) -> int:
    """Return how much of a quota of storage others use."""
    kinds = {row["code"]: kind for kind, row in table("quotas")["lustre"].items()}
    wanted = kinds[quota].partition("_")[0] if kinds[quota].startswith("scratch") else kinds[quota]
    return sum(
        found["StorageCapacity"]
        for found in api.pages("fsx", "describe_file_systems", "FileSystems")
        if found.get("LustreConfiguration", {}).get("DeploymentType", "").lower().startswith(wanted)
        and tags.cluster_of(found) != cluster
    )
