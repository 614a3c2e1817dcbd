"""The file systems of the local cloud's FSx: made, linked to S3, and deleted."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

from moto.ec2.models import ec2_backends
from moto.s3.models import s3_backends

from localcloud.api import partitions
from localcloud.context import Context
from localcloud.storage import file_system_records, file_systems
from localcloud.storage.fsx import checks, links
from localcloud.storage.fsx.checks import FsxError
from localcloud.storage.fsx.records import Interface, Link, Lustre

_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_EVERY_S = 2.0
log = logging.getLogger(__name__)


class Service:
    """All file systems. While any is linked to S3, a thread keeps directories and prefixes alike, by their policies."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.systems: dict[str, Lustre] = {}
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._follows = False

    def stop(self) -> None:
        """Export what was written last. Directories are removed afterwards, which must not delete objects."""
        self._ended.set()
        self.look()
        with self._lock:
            self.systems.clear()

    def create(self, region: str, given: Mapping[str, Any], tags: Mapping[str, str]) -> Lustre:
        """Make a file system. Raises FsxError for what FSx refuses."""
        lustre = given.get("LustreConfiguration") or {}
        deployment, throughput = lustre.get("DeploymentType", "SCRATCH_1"), lustre.get("PerUnitStorageThroughput")
        throughput = None if throughput is None else int(throughput)
        version = str(given.get("FileSystemTypeVersion") or ("2.12" if deployment == "PERSISTENT_2" else "2.10"))
        size = None if given.get("StorageCapacity") is None else int(given["StorageCapacity"])
        checks.check_kind(given)
        checks.check_size(size, deployment)
        checks.check_speed(deployment, throughput)
        checks.check_version(deployment, version)
        (subnet_id,) = given["SubnetIds"]
        vpc_id, interface = self._interface(region, subnet_id, given.get("SecurityGroupIds") or [])
        made = Lustre(
            file_system_id=f"fs-{secrets.token_hex(9)[:17]}",
            region=region,
            account=self.context.account,
            vpc_id=vpc_id,
            subnet_id=subnet_id,
            interface=interface,
            mount_name="fsx" if deployment == "SCRATCH_1" else "".join(secrets.choice(_LETTERS) for _ in range(8)),
            size_gib=size or 0,
            version=version,
            deployment=deployment,
            throughput=throughput,
            created_s=time.time(),
            tags=dict(tags),
            domain=partitions.domain(region),
        )
        path = self._directory(made)
        path.mkdir(parents=True, mode=0o755)
        os.chown(path, self.context.root_of_nodes, self.context.root_of_nodes)
        self.systems[made.file_system_id] = made
        self.context.network_changed()
        return made

    def _interface(self, region: str, subnet_id: str, group_ids: list[str]) -> tuple[str, Interface]:
        backend: Any = ec2_backends[self.context.account][region]
        every = (one for zone in list(backend.subnets.values()) for one in zone.values())
        subnet = next((one for one in every if one.id == subnet_id), None)
        vpc_id = subnet.vpc_id if subnet else ""
        ids = group_ids or ([backend.get_default_security_group(vpc_id).id] if subnet else [])
        groups = [backend.get_security_group_from_id(one) for one in ids]
        checks.check_network(subnet, groups)
        made = backend.create_network_interface(subnet, None, group_ids=ids, description="FSx for Lustre")
        return vpc_id, Interface(made.id, made.private_ip_address, tuple(sorted(ids)))

    def update(self, given: Mapping[str, Any]) -> Lustre:
        """Give a file system another size or throughput. Raises FsxError for what FSx refuses."""
        found, lustre = self.named(given["FileSystemId"]), given.get("LustreConfiguration") or {}
        checks.check_update(given)
        now, size = self.context.clock.now(), int(given.get("StorageCapacity") or found.size_gib)
        throughput = lustre.get("PerUnitStorageThroughput")
        throughput = found.throughput if throughput is None else int(throughput)
        if size != found.size_gib:
            checks.check_growth(found, size, now)
        checks.check_speed(found.deployment, throughput)
        found.grown_at = now if size != found.size_gib else found.grown_at
        found.size_gib, found.throughput = size, throughput
        return found

    def delete(self, file_system_id: str) -> None:
        """Delete a file system with its data. Raises FsxError if there is none."""
        found = self.named(file_system_id)
        with self._lock:
            del self.systems[file_system_id]
            ec2_backends[self.context.account][found.region].delete_network_interface(found.interface.interface_id)
            file_systems.discard(self.context, self._directory(found))
        self.context.network_changed()

    def named(self, file_system_id: str) -> Lustre:
        if file_system_id not in self.systems:
            raise FsxError("FileSystemNotFound", f"File system '{file_system_id}' does not exist.")
        return self.systems[file_system_id]

    def of(self, arn: str) -> Lustre:
        """Return the file system of an ARN."""
        return self.named(arn.rpartition("/")[2])

    def link(self, given: Mapping[str, Any]) -> tuple[Lustre, Link]:
        """Link a directory to a prefix, and import what is there. Raises FsxError for what FSx refuses."""
        found, url = self.named(given["FileSystemId"]), str(given["DataRepositoryPath"])
        path = str(given["FileSystemPath"])
        checks.check_link(found, path, url)
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if bucket not in s3_backends[self.context.account][partitions.played()].buckets:
            raise FsxError("BadRequest", f"The bucket {bucket} does not exist or can't be accessed.")
        policies = [(given.get("S3") or {}).get(name) or {} for name in ("AutoImportPolicy", "AutoExportPolicy")]
        imports, exports = (frozenset(one.get("Events") or ()) for one in policies)
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        link = Link(f"dra-{secrets.token_hex(9)[:17]}", path.strip("/"), bucket, folder, imports, exports)
        with self._lock:
            wants_all = given.get("BatchImportMetaDataOnCreate") in (True, "true")
            links.sync(str(self._directory(found)), link, found.account, self.context.root_of_nodes, first=wants_all)
            found.links[link.association_id] = link
            if not self._follows:
                self._follows = True
                self.context.spawn(self._follow, name="fsx")
        return found, link

    def unlink(self, association_id: str) -> Lustre:
        """Remove a link; its files stay. Raises FsxError if there is none."""
        for found in list(self.systems.values()):
            if found.links.pop(association_id, None):
                return found
        raise FsxError("DataRepositoryAssociationNotFound", f"There is no association {association_id}")

    def _follow(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self.look()

    def look(self) -> None:
        """Look once at all links, and at both their sides."""
        for found in list(self.systems.values()):
            for link in list(found.links.values()):
                self._sync(found, link)

    def _sync(self, found: Lustre, link: Link) -> None:
        with self._lock:
            if found.file_system_id in self.systems:
                try:
                    links.sync(str(self._directory(found)), link, found.account, self.context.root_of_nodes)
                except Exception:
                    log.exception("%s is not synchronized", link.url)
        self.context.keep_buckets()

    def _directory(self, found: Lustre) -> Any:
        return file_system_records.directory(self.context.state, found.file_system_id)
