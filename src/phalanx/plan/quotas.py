"""What a cluster takes of the account's quotas, and whether that fits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from phalanx.data import table
from phalanx.errors import SpecError
from phalanx.node.workers_group import workers_of
from phalanx.plan import lustre_storage, vpc_endpoints
from phalanx.plan.capacity import ON_DEMAND, SPOT, bought
from phalanx.plan.existing_vpc import ExistingVpc
from phalanx.spec import spec_lustre
from phalanx.spec.makers import maker_of
from phalanx.spec.spec import ClusterSpec

# The units of endpoints in the table. A new VPC has room for all interface endpoints of a cluster.
_INTERFACES, _GATEWAYS = "interface endpoint", "gateway endpoint"


@dataclass(frozen=True)
class Quota:
    """A quota of an account in a region (docs/aws-behaviour.md 2.19, 2.31).

    `needed` is what the whole cluster takes, `least` what its smallest acceptable form takes. `used` is what others
    have. `limit` is None if Service Quotas was not asked or did not answer.
    """

    key: str
    """The key of phalanx.yaml that decides how much is needed; "" if none does."""
    unit: str
    service: str
    code: str
    name: str
    default: int | None
    """AWS's value for a new account; None if it differs."""
    needed: int
    least: int
    each: int = 0
    """What one node more or less makes; 0 if the number of nodes does not matter."""
    limit: int | None = None
    used: int = 0

    @property
    def free(self) -> int:
        """What is left for the cluster; meaningless without `limit`."""
        return max(0, (self.limit or 0) - self.used)


def of(spec: ClusterSpec, vcpus: int, head_vcpus: int | None = None, vpc: ExistingVpc | None = None) -> list[Quota]:
    """Return the quotas that the cluster takes of, none of them asked.

    `vcpus` are those of each node but a separate head; `vpc` is the existing one of the spec's subnets.
    """
    head = _family(spec.head["type"] if spec.head else spec.type)
    of_head = vcpus if head_vcpus is None else head_vcpus
    rows: list[tuple[dict[str, Any], str, str, int, int, int]] = []
    for way in (ON_DEMAND, SPOT):
        for row in table("quotas")[way]:
            first = of_head if bought(spec, "head") == way and head in row["families"] else 0
            each = vcpus if bought(spec, "worker") == way and _family(spec.type) in row["families"] else 0
            if first or (each and spec.nodes > 1):
                whole, least = (first + workers_of(number) * each for number in (spec.nodes, spec.min))
                rows.append((row, "nodes", "vCPU", whole, least, each))
    network = _of_network(spec, vpc)
    rows += [(row, "", row["unit"], taken, taken, 0) for row, taken in network if taken]
    if lustre_storage.is_made(spec):
        size, row = spec_lustre.size_gib(spec.lustre), table("quotas")["lustre"][spec_lustre.deployment(spec.lustre)]
        rows.append((row, "lustre", "GiB", size, size, 0))
    found = [
        Quota(key, unit, row["service"], row["code"], row["name"], row.get("default"), needed, least, each)
        for row, key, unit, needed, least, each in rows
    ]
    return [replace(one, used=vpc.interface_endpoints) if vpc and one.unit == _INTERFACES else one for one in found]


def of_any_cluster() -> list[Quota]:
    """Return the quotas in vCPUs, each for one, and what a small cluster with a VPC of its own takes of the others."""
    rows = table("quotas")
    of_machines = [
        Quota("nodes", "vCPU", row["service"], row["code"], row["name"], None, needed=1, least=1)
        for row in (*rows[ON_DEMAND], *rows[SPOT])
    ]
    return of_machines + [
        Quota("", row["unit"], row["service"], row["code"], row["name"], row["default"], row["needed"], row["needed"])
        for row in (*rows["network"], rows["file_systems"])
        if "needed" in row
    ]


def _of_network(spec: ClusterSpec, vpc: ExistingVpc | None) -> list[tuple[dict[str, Any], int]]:
    """Return the quotas of networks, and how much of each the cluster's takes."""
    made: dict[str, int] = {}
    if vpc:
        gateways = vpc_endpoints.made_gateways(spec, vpc)
        made = {_INTERFACES: len(vpc_endpoints.made(spec, vpc)), _GATEWAYS: len(gateways)}
    place = _place(spec)
    return [(row, made.get(row["unit"]) or row.get(place, 0)) for row in table("quotas")["network"]]


def _place(spec: ClusterSpec) -> str:
    """Return what the table calls the network of the cluster."""
    if maker_of(spec.cloud).in_public_subnet:
        return "on_emr"
    if spec.subnets:
        return "private_in_existing_vpc" if spec.is_private else "in_existing_vpc"
    return "private" if spec.is_private else "needed"


def counts(quota: Quota, instance_type: str, lifecycle: str = "") -> bool:
    """Whether an instance of this type counts against the quota; `lifecycle` is EC2's, "" for one on demand."""
    rows = table("quotas").get(lifecycle or ON_DEMAND, [])
    return any(quota.code == row["code"] and _family(instance_type) in row["families"] for row in rows)


def refuse_exceeded(quotas: tuple[Quota, ...], spec: ClusterSpec) -> None:
    """Raise SpecError, with the nearest cluster that fits, if not even the smallest acceptable one does."""
    region = spec.region
    for quota in quotas:
        if quota.limit is not None and quota.least > quota.free:
            raise SpecError(
                f"{f'{quota.key}: ' if quota.key else ''}at least {amount(quota.least, quota.unit)} needed, and your "
                f"quota “{quota.name}” leaves {quota.free} of {quota.limit} in {region} ({quota.used} in use)",
                f"{_nearest(quota, spec)}{request(quota, region)}",
                code="quota",
            )


def request(quota: Quota, region: str) -> str:
    """Return a sentence with the command that requests as much as is needed."""
    return (
        f"Request more: `aws service-quotas request-service-quota-increase --region {region} --service-code "
        f"{quota.service} --quota-code {quota.code} --desired-value {quota.used + quota.needed}`"
    )


def _nearest(quota: Quota, spec: ClusterSpec) -> str:
    """Name the nearest cluster that fits into what is left: fewer nodes, or a smaller type of the same series."""
    if not quota.each:
        return ""
    fewer = spec.min - math.ceil((quota.least - quota.free) / quota.each)
    if fewer >= 1:
        return f"The nearest that fits: `nodes: {fewer}` with `min: {fewer}`. "
    kinds, series = table("instance_types")["types"], spec.type.partition(".")[0] + "."
    smaller = [name for name in kinds if name.startswith(series) and kinds[name]["vcpus"] * spec.min <= quota.free]
    largest = max(smaller, key=lambda name: kinds[name]["vcpus"], default="")
    return f"The nearest that fits: `type: {largest}`. " if largest and not spec.head else ""


def described(quota: Quota) -> str:
    """Describe an asked quota: needed, limit, in use."""
    return f"{quota.needed} of {amount(quota.limit or 0, quota.unit)} ({quota.used} in use)"


def warning(quota: Quota, region: str) -> str:
    """Return what the user should know; "" if the whole cluster fits."""
    if quota.limit is None:
        usual = f", {quota.default} by default" if quota.default is not None else ""
        verb = "counts" if quota.needed == 1 else "count"
        return f"{amount(quota.needed, quota.unit)} {verb} against your quota “{quota.name}” ({quota.code}{usual})"
    if quota.needed <= quota.free:
        return ""
    return f"{_left(quota, region)}, and {quota.needed} are needed: not all nodes can start"


def state(quota: Quota, region: str) -> str:
    """Say what is left of an asked quota for the cluster and, if that is too little, how to request more."""
    text = f"{_left(quota, region)} ({quota.used} in use by others), and {quota.needed} are needed"
    return text if quota.needed <= quota.free else f"{text}. {request(quota, region)}"


def _left(quota: Quota, region: str) -> str:
    limit = amount(quota.limit or 0, quota.unit)
    return f"your quota “{quota.name}” ({quota.code}) leaves {quota.free} of {limit} in {region}"


def amount(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 or unit == "GiB" else f"{number} {unit}s"


def _family(instance_type: str) -> str:
    return "".join(takewhile(str.isalpha, instance_type))
