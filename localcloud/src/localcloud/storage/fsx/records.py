"""What the local cloud's FSx knows of its file systems and their links to S3."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from localcloud.api import partitions

LUSTRE_PORT = 988


@dataclass(frozen=True)
class Interface:
    """The file system's network interface in its subnet."""

    interface_id: str
    address: str
    groups: tuple[str, ...]


@dataclass
class Link:
    """A data repository association: a directory that shows the objects below a prefix (`path` without slashes).

    `seen` are the objects and the files as of the last look, by their names below both: ETags, and (time, size).
    """

    association_id: str
    path: str
    bucket: str
    prefix: str
    imports: frozenset[str]
    exports: frozenset[str]
    seen_objects: dict[str, str] = field(default_factory=dict)
    seen_files: dict[str, tuple[int, int]] = field(default_factory=dict)
    modes: tuple[int, int] = (0o755, 0o755)
    """Of the files and the directories that are made for objects."""

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


@dataclass
class Lustre:
    """A file system."""

    file_system_id: str
    region: str
    account: str
    vpc_id: str
    subnet_id: str
    interface: Interface
    mount_name: str
    size_gib: int
    version: str
    deployment: str
    throughput: int | None
    created_s: float
    tags: dict[str, str]
    domain: str
    links: dict[str, Link] = field(default_factory=dict)
    grown_at: datetime | None = None

    @property
    def arn(self) -> str:
        return f"{partitions.arn()}:fsx:{self.region}:{self.account}:file-system/{self.file_system_id}"

    @property
    def dns_name(self) -> str:
        return f"{self.file_system_id}.fsx.{self.region}.{self.domain}"

    def described(self) -> dict[str, Any]:
        """Describe it as DescribeFileSystems does."""
        speed = {"PerUnitStorageThroughput": self.throughput} if self.throughput else {}
        return {
            "OwnerId": self.account,
            "CreationTime": self.created_s,
            "FileSystemId": self.file_system_id,
            "FileSystemType": "LUSTRE",
            "Lifecycle": "AVAILABLE",
            "StorageCapacity": self.size_gib,
            "StorageType": "SSD",
            "VpcId": self.vpc_id,
            "SubnetIds": [self.subnet_id],
            "NetworkInterfaceIds": [self.interface.interface_id],
            "DNSName": self.dns_name,
            "ResourceARN": self.arn,
            "Tags": [{"Key": key, "Value": value} for key, value in self.tags.items()],
            "FileSystemTypeVersion": self.version,
            "LustreConfiguration": {"DeploymentType": self.deployment, "MountName": self.mount_name, **speed},
        }

    def association(self, link: Link) -> dict[str, Any]:
        """Describe a link as DescribeDataRepositoryAssociations does."""
        policies = {"AutoImportPolicy": link.imports, "AutoExportPolicy": link.exports}
        return {
            "AssociationId": link.association_id,
            "ResourceARN": f"{partitions.arn()}:fsx:{self.region}:{self.account}:association/{self.file_system_id}/"
            f"{link.association_id}",
            "FileSystemId": self.file_system_id,
            "Lifecycle": "AVAILABLE",
            "FileSystemPath": f"/{link.path}",
            "DataRepositoryPath": link.url,
            "S3": {name: {"Events": sorted(events)} for name, events in policies.items() if events},
        }
