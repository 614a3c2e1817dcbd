"""A file system of FSx for Lustre: the one that a plan makes and its price, or one of the user's. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from phalanx.data import table
from phalanx.errors import SpecError
from phalanx.plan.machine_images import ImageChoice
from phalanx.spec import spec_lustre
from phalanx.spec.cloud_names import is_local
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_storage import LUSTRE

PORTS = ((988, 988), (1018, 1023))
"""The ranges of TCP ports between Lustre's servers and clients (docs/aws-behaviour.md 4.12)."""


@dataclass(frozen=True)
class LustreFileSystem:
    """A file system as FSx describes it; `groups` are the security groups of its interfaces."""

    state: str
    dns_name: str
    mount_name: str
    vpc: str
    groups: tuple[str, ...]

    @property
    def place(self) -> str:
        """What `mount -t lustre` takes."""
        return f"{self.dns_name}@tcp:/{self.mount_name}"


def is_made(spec: ClusterSpec) -> bool:
    """Whether the stack makes a Lustre file system."""
    return spec.storage == LUSTRE and not spec.file_system


def usd_per_month(size_gib: int, deployment: str, throughput: int) -> float | None:
    """Return the price of a file system, used or not; None if the table does not have the type."""
    price = table("lustre")["usd_per_gib_month"].get(deployment.lower(), {}).get(str(throughput))
    return None if price is None else round(size_gib * price, 2)


def usd_per_hour(spec: ClusterSpec) -> float:
    """Return the price of the file system that the stack makes, from its creation until `down`."""
    if not is_made(spec) or is_local(spec.cloud):
        return 0.0
    lustre = spec.lustre
    month = usd_per_month(spec_lustre.size_gib(lustre), spec_lustre.deployment(lustre), spec_lustre.throughput(lustre))
    return hourly(month) or 0.0


def hourly(usd_per_month: float | None) -> float | None:
    return None if usd_per_month is None else usd_per_month / table("lustre")["hours_of_month"]


def described(spec: ClusterSpec) -> str:
    """Describe the file system that is made: its size, speed, and what of S3 appears in it."""
    size, deployment = spec_lustre.size_gib(spec.lustre), spec_lustre.deployment(spec.lustre)
    per_tib = spec_lustre.throughput(spec.lustre) or table("lustre")["scratch_mb_s_per_tib"]
    speed = f"{size * per_tib // 1000} MB/s for all nodes together"
    links = "".join(
        f"; data/{place.name} is {place.url}{', both ways' if place.is_writable else ''}"
        for place in spec_lustre.linked(spec.lustre, spec.data)
    )
    return f"an FSx for Lustre file system of {size} GiB ({deployment}, {speed}){links}"


def warnings(spec: ClusterSpec, image: ImageChoice) -> Iterator[str]:
    """Yield what may surprise, one sentence each."""
    if is_local(spec.cloud) or spec.storage != LUSTRE:
        return
    if is_made(spec):
        yield "the Lustre file system costs as much while the nodes are stopped; it ends with the cluster"
    yield from image.warnings_of_lustre()


def refuse_unreachable(spec: ClusterSpec, found: LustreFileSystem | None, vpc: str) -> None:
    """Raise SpecError if the user's file system can't be mounted from the cluster's VPC, "" for a new one."""
    if spec.storage != LUSTRE or not spec.file_system:
        return
    if found is None:
        raise SpecError(
            f"file_system: only FSx knows the mount name of {spec.file_system}",
            "Leave --offline out.",
            code="cloud-not-asked",
        )
    if found.vpc != vpc:
        raise SpecError(
            f"file_system: {spec.file_system} is in {found.vpc}, and the nodes are in {vpc or 'a new VPC'}",
            f"Name subnets of {found.vpc} (`network`).",
            code="file-system-elsewhere",
        )
    if found.state != "AVAILABLE":
        raise SpecError(
            f"file_system: {spec.file_system} is {found.state}",
            "Wait until it is AVAILABLE.",
            code="file-system-not-ready",
        )
