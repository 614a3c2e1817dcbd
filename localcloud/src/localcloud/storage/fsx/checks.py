"""What FSx refuses, with its own error codes (docs/aws-behaviour.md 4.11 to 4.13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from moto.core.exceptions import JsonRESTError

from localcloud.iam.errors import NOT_SERVED
from localcloud.storage.fsx.records import LUSTRE_PORT, Lustre

SMALLEST_GIB = 1200
_STEPS_GIB = {"SCRATCH_1": 3600}
_THROUGHPUTS = {"PERSISTENT_1": (50, 100, 200), "PERSISTENT_2": (125, 250, 500, 1000)}
_MOST_LINKS = 8
_CHANGES = {
    *("FileSystemId", "ClientRequestToken", "StorageCapacity"),
    *("LustreConfiguration", "PerUnitStorageThroughput"),
}
_BETWEEN_GROWTHS = timedelta(hours=6)
_NO_LUSTRE = (
    "The file system cannot be created because the default security group in the subnet provided or the provided "
    "security groups do not permit Lustre LNET network traffic on port 988"
)


class FsxError(JsonRESTError):
    """A refusal of FSx's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)


def check_kind(given: Mapping[str, Any]) -> None:
    """Refuse what the local cloud does not have, and what FSx has not."""
    kind, storage = given["FileSystemType"], given.get("StorageType", "SSD")
    if kind != "LUSTRE" or storage != "SSD" or "BackupId" in given:
        raise FsxError(NOT_SERVED, f"The local cloud does not serve fsx:CreateFileSystem for {kind} on {storage}.")
    if len(given["SubnetIds"]) != 1:
        raise FsxError("BadRequest", "Exactly one subnet ID must be provided for a Lustre file system.")


def check_size(size: int | None, deployment: str) -> None:
    step = _STEPS_GIB.get(deployment, 2400)
    if size is None or not (size in (SMALLEST_GIB, 2400) or (size > 0 and size % step == 0)):
        must = f"must be 1200, 2400, or increments of {step} GiB"
        text = f"StorageCapacity {size or 'null'} is not valid for {deployment}: {must}"
        raise FsxError("BadRequest", text)


def check_speed(deployment: str, throughput: int | None) -> None:
    valid = _THROUGHPUTS.get(deployment)
    if (throughput is None) != (valid is None) or (valid and throughput not in valid):
        values = f"valid values are {list(valid or ())}"
        text = f"PerUnitStorageThroughput {throughput or 'null'} is not valid for {deployment}: {values}"
        raise FsxError("InvalidPerUnitStorageThroughput", text)


def check_version(deployment: str, version: str) -> None:
    if version not in ("2.10", "2.12", "2.15") or (deployment, version) == ("PERSISTENT_2", "2.10"):
        raise FsxError("BadRequest", f"FileSystemTypeVersion {version} is not supported for {deployment}")


def check_update(given: Mapping[str, Any]) -> None:
    """Refuse changes that the local cloud does not have."""
    changed = {*given, *(given.get("LustreConfiguration") or {})}
    if unserved := sorted(changed - _CHANGES):
        raise FsxError(NOT_SERVED, f"The local cloud does not serve fsx:UpdateFileSystem with {unserved[0]}.")


def check_growth(found: Lustre, size: int, now: datetime) -> None:
    """Refuse what the size of a file system that is there can't become (docs/aws-behaviour.md 4.18)."""
    step = 2400
    if found.deployment == "SCRATCH_1":
        raise FsxError("BadRequest", "The storage capacity of SCRATCH_1 file systems can't be increased")
    if size <= found.size_gib or size % step:
        text = f"StorageCapacity {size} must be a multiple of {step} GiB above the current capacity, {found.size_gib}"
        raise FsxError("BadRequest", text)
    if found.grown_at and now < found.grown_at + _BETWEEN_GROWTHS:
        raise FsxError("BadRequest", "The storage capacity was increased in the last 6 hours")


def check_network(subnet: Any, groups: Iterable[Any]) -> None:
    """Refuse a subnet or groups that do not exist, and groups that do not let Lustre's servers reach each other."""
    if subnet is None:
        raise FsxError("InvalidNetworkSettings", "The subnet ID is invalid.")
    found = list(groups)
    if any(group is None or group.vpc_id != subnet.vpc_id for group in found):
        raise FsxError("InvalidNetworkSettings", "The security group ID is either invalid or not part of the VPC.")
    ids = {group.id for group in found}
    if not any(_lets_in(rule, ids, subnet.cidr_block) for group in found for rule in group.ingress_rules):
        raise FsxError("InvalidNetworkSettings", _NO_LUSTRE)


def _lets_in(rule: Any, groups: set[str], subnet: str) -> bool:
    """Whether a rule lets servers with these groups, in this subnet, reach port 988."""
    if str(rule.ip_protocol) not in ("-1", "tcp"):
        return False
    first, last = rule.from_port, rule.to_port
    if rule.ip_protocol == "tcp" and first is not None and not int(first) <= LUSTRE_PORT <= int(last):
        return False
    return (rule.source_group or {}).get("GroupId") in groups or rule.cidr_ipv4 in (subnet, "0.0.0.0/0")


def check_link(found: Lustre, path: str, url: str) -> None:
    """Refuse a link that the file system can't have."""
    if found.deployment == "SCRATCH_1" or found.version == "2.10":
        text = f"Data repository associations are not supported on {found.deployment} with Lustre {found.version}"
        raise FsxError("UnsupportedOperation", text)
    if len(found.links) >= _MOST_LINKS:
        raise FsxError("ServiceLimitExceeded", f"A file system has at most {_MOST_LINKS} data repository associations")
    if not path.strip("/") or ".." in path.split("/") or not url.startswith("s3://"):
        raise FsxError("BadRequest", f"{path} can't be linked to {url}")
    for other in found.links.values():
        if _overlap(other.path, path.strip("/")) or _overlap(other.url, url):
            text = f"{path} or {url} overlaps with the association {other.association_id}"
            raise FsxError("BadRequest", text)


def _overlap(one: str, other: str) -> bool:
    """Whether one of two paths is the other, or inside it."""
    first, second = f"{one.rstrip('/')}/", f"{other.rstrip('/')}/"
    return first.startswith(second) or second.startswith(first)
