"""Plays the account of a profile: what an organisation denies in it, the VPC that it shares, and its quotas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend, ec2_backends, subnets
from moto.ec2.models.nat_gateways import NatGateway
from moto.ec2.models.subnets import Subnet
from moto.ec2.models.vpcs import VPC
from moto.ec2.responses.general import General
from moto.iam.exceptions import IAMException
from moto.iam.models import IAMBackend, iam_backends
from moto.organizations.exceptions import AWSOrganizationsNotInUseException
from moto.organizations.responses import OrganizationsResponse

from localcloud import accounts
from localcloud.accounts import BOUNDARY, DENIED, OWNER, REGION, SUBNETS
from localcloud.api import partitions
from localcloud.api.refusals.before import Given, before
from localcloud.context import ADMIN, Context
from localcloud.ec2 import account_quotas, account_regions, fleet, placement
from localcloud.weather import organisation

_NEW = 5
_BLOCK = "10.64"
# A participant makes none of these in a VPC that is shared with it (docs/aws-behaviour.md 2.65).
_OF_OWNERS = ("create_route_table", "create_subnet", "create_vpc_endpoint", "modify_vpc_attribute")
# What a launch has that says nothing else.
_METADATA = {"HttpEndpoint": "disabled", "HttpTokens": "required"}
# An instance with this tag has one of two values (docs/aws-behaviour.md 11.10).
_TAG_POLICY: dict[str, dict[str, dict[str, Any]]] = {
    "tags": {
        "cost-center": {
            "tag_key": "CostCenter",
            "tag_value": ["Research", "Production"],
            "enforced_for": ["ec2:instance"],
        }
    }
}
PATCHED = (
    tuple(
        f"moto.ec2.models.EC2Backend.{name}"
        for name in ("describe_addresses", "describe_internet_gateways", "describe_nat_gateways", "describe_subnets")
    )
    + account_regions.PATCHED
)


@dataclass
class _Played:
    """The account that is played. `hidden` are ids of the owner's resources, which a participant does not see."""

    profile: str = accounts.OWN
    account: str = ""
    hidden: frozenset[str] = frozenset()

    @property
    def is_company(self) -> bool:
        return self.profile == accounts.COMPANY


_played = _Played()


class _AccessDeniedError(IAMException):
    code = "AccessDenied"


class _SharedVpc(VPC):
    owner_id = OWNER  # type: ignore[assignment]


class _SharedSubnet(Subnet):
    owner_id = OWNER  # type: ignore[assignment]


def install(context: Context) -> None:
    """Play the context's account, with what its owner and its organisation have made in it."""
    _played.profile, _played.account, _played.hidden = accounts.OWN, context.account, frozenset()
    placement.METADATA_DEFAULTS.clear()
    users = iam_backends[context.account][partitions.played()]
    if ADMIN not in users.users:
        users.create_user(partitions.home(), ADMIN)
    for name in (one.rpartition(".")[2] for one in PATCHED if ".EC2Backend." in one):
        if not hasattr(getattr(EC2Backend, name), "is_filtered"):
            setattr(EC2Backend, name, _filtered(getattr(EC2Backend, name)))
    for answer in (
        describe_vpc_block_public_access_options,
        describe_vpc_block_public_access_exclusions,
        get_instance_metadata_defaults,
        get_allowed_images_settings,
    ):
        setattr(General, answer.__name__, answer)
    setattr(OrganizationsResponse, "describe_effective_policy", describe_effective_policy)  # noqa: B010 - moto has none
    if context.profile == accounts.COMPANY:
        _played.hidden = frozenset(_share_network(ec2_backends[context.account][REGION]))
        _make_boundary(iam_backends[context.account][partitions.played()])
        placement.METADATA_DEFAULTS.update(_METADATA)
    if context.profile == accounts.FRESH:
        fleet.current().pool.limit_vcpus(_NEW)
        for code in (account_quotas.ADDRESSES, account_quotas.VPCS):
            account_quotas.limit(code, _NEW)
    account_regions.install(context)
    _played.profile = context.profile


def describe_vpc_block_public_access_options(response: General) -> ActionResult:
    """Answer with the account's mode. In a company's, internet gateways of its own VPCs would let nothing through."""
    mode, state = ("block-bidirectional", "update-complete") if _played.is_company else ("off", "default-state")
    options = {
        "AwsAccountId": _played.account,
        "AwsRegion": response.region,
        "State": state,
        "InternetGatewayBlockMode": mode,
        **_managed(),
        "ExclusionsAllowed": "not-allowed" if _played.is_company else "allowed",
    }
    return ActionResult({"VpcBlockPublicAccessOptions": options})


def describe_vpc_block_public_access_exclusions(_response: General) -> ActionResult:
    return ActionResult({"VpcBlockPublicAccessExclusions": []})


def get_instance_metadata_defaults(_response: General) -> ActionResult:
    return ActionResult({"AccountLevel": {**placement.METADATA_DEFAULTS, **_managed()}})


def get_allowed_images_settings(_response: General) -> ActionResult:
    return ActionResult({"State": "disabled", **_managed()})


def describe_effective_policy(response: OrganizationsResponse) -> str:
    """Answer with the tag policy of a company's organisation, the only kind that is played."""
    if not _played.is_company:
        raise AWSOrganizationsNotInUseException
    kind, content = response._get_param("PolicyType"), {}
    if kind == "TAG_POLICY":
        content = _TAG_POLICY
    effective = {"PolicyType": kind, "TargetId": _played.account, "PolicyContent": json.dumps(content)}
    return json.dumps({"EffectivePolicy": effective})


def _managed() -> dict[str, str]:
    return {"ManagedBy": "declarative-policy" if _played.is_company else "account"}


def _share_network(backend: EC2Backend) -> list[str]:
    """Make the owner's VPC, unless it is there; return the ids of what participants don't see."""
    vpc = next((one for one in backend.vpcs.values() if isinstance(one, _SharedVpc)), None)
    if vpc is None:
        vpc = _made_network(backend)
    public = [one.id for one in backend.describe_subnets() if one.vpc_id == vpc.id and one.id not in SUBNETS]
    gateways = [one.id for one in backend.internet_gateways.values() if one.vpc and one.vpc.id == vpc.id]
    nats: list[NatGateway] = [one for one in backend.nat_gateways.values() if one.vpc_id == vpc.id]
    addresses = [entry["allocationId"] for one in nats for entry in one.address_set]
    return [*public, *gateways, *(one.id for one in nats), *addresses]


def _made_network(backend: EC2Backend) -> VPC:
    vpc = backend.create_vpc(f"{_BLOCK}.0.0/16")
    backend.modify_vpc_attribute(vpc.id, "enable_dns_hostnames", "true")
    public = _subnet(backend, vpc, 0)
    shared = [_subnet(backend, vpc, number, name) for number, name in enumerate(SUBNETS, 1)]
    gateway = backend.create_internet_gateway()
    backend.attach_internet_gateway(gateway.id, vpc.id)
    nat = backend.create_nat_gateway(public.id, backend.allocate_address("vpc").allocation_id or "")
    targets: tuple[dict[str, Any], ...] = {"gateway_id": gateway.id}, {"nat_gateway_id": nat.id}
    for inside, target in zip(([public], shared), targets, strict=True):
        table = backend.create_route_table(vpc.id)
        backend.create_route(table.id, "0.0.0.0/0", **target)
        for subnet in inside:
            backend.associate_route_table(table.id, subnet_id=subnet.id)
    vpc.__class__ = _SharedVpc
    return vpc


def _subnet(backend: EC2Backend, vpc: VPC, number: int, name: str = "") -> Subnet:
    """Make a subnet; one with a name is shared, and users can write its id into a file before anything starts."""
    moto: Any = subnets
    made_ids = moto.random_subnet_id
    if name:
        moto.random_subnet_id = lambda: name
    try:
        made = backend.create_subnet(vpc.id, f"{_BLOCK}.{number}.0/24", availability_zone=f"{REGION}a")
    finally:
        moto.random_subnet_id = made_ids
    if name:
        made.__class__ = _SharedSubnet
    return made


def _make_boundary(backend: IAMBackend) -> None:
    """Make the policy that bounds roles: everything but what could undo it."""
    allow = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
    if BOUNDARY not in backend.managed_policies:
        backend.create_policy("The boundary of the organisation", "/", allow, BOUNDARY.rpartition("/")[2], [])


def _filtered(describe_all: Callable[..., Iterable[Any]]) -> Callable[..., Any]:
    def seen(self: EC2Backend, *args: Any, **kwargs: Any) -> Any:
        found = list(describe_all(self, *args, **kwargs))
        if not _played.hidden:
            return found
        return [one for one in found if not _played.hidden & {str(getattr(one, "id", "")), _allocation(one)}]

    setattr(seen, "is_filtered", True)  # noqa: B010 - a function's own attribute
    return seen


def _allocation(one: Any) -> str:
    return str(getattr(one, "allocation_id", ""))


def _denied(action: str, resource: str) -> str:
    who = f"{partitions.arn()}:iam::{_played.account}:user/{ADMIN}"
    return (
        f"User: {who} is not authorized to perform: {action} on resource: {resource} with an explicit deny in a "
        "service control policy"
    )


def denial(action: str, region: str) -> str:
    """Return EC2's message if the organisation denies the action to everybody in the account; "" otherwise."""
    if not _played.is_company or action not in DENIED.values():
        return ""
    where = f"{partitions.arn()}:ec2:{region}:{_played.account}:*/*"
    return f"You are not authorized to perform this operation. {_denied(action, where)}"


def _deny(action: str, backend: Any, _given: Given) -> None:
    """Let nobody make networks but the owner of the organisation's."""
    if refused := denial(action, backend.region_name):
        raise EC2ClientError("UnauthorizedOperation", refused)


@before(EC2Backend, "describe_nat_gateways")
def _a_nat_gateway_is_not_seen(backend: Any, given: Given) -> None:
    """Refuse ids of gateways that are not there, or are another account's; moto leaves them out."""
    for one in given.nat_gateway_ids or ():
        if one not in backend.nat_gateways or one in _played.hidden:
            raise EC2ClientError("NatGatewayNotFound", f"The Nat Gateway {one} was not found")


@before(EC2Backend, *_OF_OWNERS)
def _a_shared_vpc_is_its_owner_s(backend: Any, given: Given) -> None:
    vpc = backend.vpcs.get(given.vpc_id)
    if _played.is_company and isinstance(vpc, _SharedVpc):
        raise EC2ClientError(
            "UnauthorizedOperation",
            f"You do not have permission to access the specified resource: {vpc.id} is shared by account {OWNER}.",
        )


@before(EC2Backend, "run_instances")
def _a_tag_has_a_value_of_the_policy(_backend: Any, given: Given) -> None:
    (rule,) = _TAG_POLICY["tags"].values()
    key = rule["tag_key"]
    value = (given.kwargs.get("tags") or {}).get("instance", {}).get(key)
    if _played.is_company and value is not None and value not in rule["tag_value"]:
        raise EC2ClientError(*organisation.tag_violation(key))


@before(IAMBackend, "create_role")
def _a_role_has_no_boundary(_backend: Any, given: Given) -> None:
    is_linked = str(given.path).startswith("/aws-service-role/")
    if _played.is_company and given.permissions_boundary != BOUNDARY and not is_linked:
        role = f"role{given.path or '/'}{given.role_name}"
        raise _AccessDeniedError(_denied("iam:CreateRole", f"{partitions.arn()}:iam::{_played.account}:{role}"))


for _method, _action in DENIED.items():
    before(EC2Backend, _method)(partial(_deny, _action))
