"""Asks Service Quotas what the account may have, and EC2 what it has already."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from phalanx.aws import lustre_file_systems, tags
from phalanx.aws.refusals import is_gone
from phalanx.errors import CloudError
from phalanx.plan import quotas
from phalanx.plan.quotas import Quota

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_RUNNING = {"Name": "instance-state-name", "Values": ["pending", "running"]}

_LISTINGS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "VPC": ("ec2", "describe_vpcs", "Vpcs", {}),
    "Elastic IP": ("ec2", "describe_addresses", "Addresses", {}),
    "file system": ("efs", "describe_file_systems", "FileSystems", {}),
    "gateway endpoint": (
        *("ec2", "describe_vpc_endpoints", "VpcEndpoints"),
        {"Filters": [{"Name": "vpc-endpoint-type", "Values": ["Gateway"]}]},
    ),
}


def ask(api: Aws, cluster: str, wanted: list[Quota]) -> tuple[tuple[Quota, ...], str]:
    """Return the quotas with their limits and with what others use; without them if AWS refuses, and why.

    What the cluster of this name has already is not counted.
    """
    try:
        return tuple(replace(quota, limit=_limit(api, quota), used=_used(api, quota, cluster)) for quota in wanted), ""
    except CloudError as error:
        return tuple(wanted), error.message


def _limit(api: Aws, quota: Quota) -> int:
    """Return the applied value, or AWS's default: an account may have no value of its own."""
    code = {"ServiceCode": quota.service, "QuotaCode": quota.code}
    try:
        answer = api.call("service-quotas", "get_service_quota", **code)
    except CloudError as error:
        if not is_gone(error.__cause__):
            raise
        answer = api.call("service-quotas", "get_aws_default_service_quota", **code)
    return int(answer["Quota"]["Value"])


def _used(api: Aws, quota: Quota, cluster: str) -> int:
    if quota.unit == "vCPU":
        return _vcpus(api, quota, cluster)
    if quota.service == "fsx":
        return lustre_file_systems.used_gib(api, quota.code, cluster)
    if quota.unit not in _LISTINGS:
        return quota.used  # that of one VPC, which was counted there
    service, operation, listed, which = _LISTINGS[quota.unit]
    return sum(not tags.is_of(entry, cluster) for entry in api.pages(service, operation, listed, **which))


def _vcpus(api: Aws, quota: Quota, cluster: str) -> int:
    """Count the vCPUs of instances: on-demand and spot ones have their own quotas, and Capacity Blocks have none."""
    reservations = api.pages("ec2", "describe_instances", "Reservations", Filters=[_RUNNING])
    instances = [instance for reservation in reservations for instance in reservation["Instances"]]
    types = Counter(
        instance["InstanceType"]
        for instance in instances
        if quotas.counts(quota, instance["InstanceType"], instance.get("InstanceLifecycle", ""))
        and not tags.is_of(instance, cluster)
    )
    sizes = api.pages("ec2", "describe_instance_types", "InstanceTypes", InstanceTypes=list(types)) if types else ()
    return sum(types[size["InstanceType"]] * size["VCpuInfo"]["DefaultVCpus"] for size in sizes)
