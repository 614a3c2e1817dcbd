"""The quotas of the local cloud's account: Service Quotas shows them, and EC2 refuses what exceeds them.

Without a fault that sets a lower one, this machine is the limit.
"""

from __future__ import annotations

import json
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend, ec2_backends
from moto.servicequotas.exceptions import NoSuchResource
from moto.servicequotas.models import ServiceQuotasBackend
from moto.servicequotas.responses import ServiceQuotasResponse

from localcloud.context import Context
from localcloud.ec2 import fleet

PATCHED = (
    "moto.ec2.models.EC2Backend.allocate_address",
    "moto.ec2.models.EC2Backend.create_vpc",
    "moto.servicequotas.models.ServiceQuotasBackend.get_service_quota",
)
ENOUGH = 1_000_000
# docs/aws-behaviour.md 2.19, 2.31
ADDRESSES, VPCS = "L-0263D0A3", "L-F678F1CE"
ENDPOINTS = frozenset({"L-1B52E74A", "L-29B6F2EB"})
VCPUS = frozenset(
    {
        *("L-1216C47A", "L-417A185B", "L-DB2E81BA", "L-2C3B7624"),
        *("L-34B43A08", "L-7212CCBC", "L-3819A6DF"),  # of spot instances
    }
)
# Those for which the account has no value of its own, so that only AWS's default can be read.
_DEFAULTS = {"L-848C634D": ("elasticfilesystem", 1000)}
_SERVICES = {**dict.fromkeys((ADDRESSES, *VCPUS), "ec2"), **dict.fromkeys((VPCS, *ENDPOINTS), "vpc")}

_limits: dict[str, int] = {}
_allocate_address: Any = EC2Backend.allocate_address
_create_vpc: Any = EC2Backend.create_vpc


def install(_context: Context) -> None:
    """Let EC2 count addresses and VPCs, and Service Quotas answer."""
    _limits.clear()
    setattr(EC2Backend, "allocate_address", _allocated)  # noqa: B010 (pyright knows the original's type)
    setattr(EC2Backend, "create_vpc", _created)  # noqa: B010
    ServiceQuotasBackend.get_service_quota = _get
    setattr(ServiceQuotasResponse, "get_aws_default_service_quota", _default)  # noqa: B010 - moto has none


def limit(code: str, count: int | None) -> None:
    """Set the quota of Elastic IPs or VPCs in a region; None lifts it."""
    _limits[code] = ENOUGH if count is None else count


def standing(code: str, region: str, account: str) -> tuple[int, int]:
    """Return the quota of Elastic IPs or VPCs in a region, and how many there are."""
    backend = ec2_backends[account][region]
    return _limits.get(code, ENOUGH), len(backend.addresses if code == ADDRESSES else backend.vpcs)


def _allocated(self: EC2Backend, *args: Any, **kwargs: Any) -> Any:
    if len(self.addresses) >= _limits.get(ADDRESSES, ENOUGH):
        raise EC2ClientError("AddressLimitExceeded", "The maximum number of addresses has been reached.")
    return _allocate_address(self, *args, **kwargs)


def _created(self: EC2Backend, *args: Any, **kwargs: Any) -> Any:
    if len(self.vpcs) >= _limits.get(VPCS, ENOUGH):
        raise EC2ClientError("VpcLimitExceeded", "The maximum number of VPCs has been reached.")
    return _create_vpc(self, *args, **kwargs)


def _get(self: ServiceQuotasBackend, service_code: str, quota_code: str) -> dict[str, Any]:  # noqa: ARG001
    if _SERVICES.get(quota_code) != service_code:
        raise NoSuchResource
    vcpus = fleet.current().pool.vcpu_limit
    value = (ENOUGH if vcpus is None else vcpus) if quota_code in VCPUS else _limits.get(quota_code, ENOUGH)
    return {"ServiceCode": service_code, "QuotaCode": quota_code, "Value": float(value), "Adjustable": True}


def _default(response: ServiceQuotasResponse) -> str:
    """Answer GetAWSDefaultServiceQuota."""
    asked = json.loads(response.body)
    service, value = _DEFAULTS.get(asked["QuotaCode"], ("", 0))
    if service != asked["ServiceCode"]:
        raise NoSuchResource
    quota = {"ServiceCode": service, "QuotaCode": asked["QuotaCode"], "Value": float(value), "Adjustable": True}
    return json.dumps({"Quota": quota})
