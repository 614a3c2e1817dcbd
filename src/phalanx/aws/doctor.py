"""Examines an account in a region: what will stop or surprise a cluster there. All requests are read-only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from phalanx.aws import kms_keys, lookups, regions, usage, vpcs
from phalanx.aws.refusals import code, is_gone, message
from phalanx.data import table
from phalanx.errors import CloudError
from phalanx.plan import existing_vpc, quotas

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

STOPS, NOTE, UNKNOWN, OK = "stops", "note", "unknown", "ok"
"""A finding that stops a cluster, one that may surprise its user, one that could not be made, and one without news."""
_AT_ONCE = 8
_AUTO_SCALING = "AWSServiceRoleForAutoScaling"
# Service → the role that it makes for itself, and who needs it (docs/aws-behaviour.md 6.3, 3.21).
_ROLES = {
    "autoscaling": (_AUTO_SCALING, "every cluster needs"),
    "elasticfilesystem": ("AWSServiceRoleForAmazonElasticFileSystem", "clusters with EFS need"),
    "spot": ("AWSServiceRoleForEC2Spot", "`capacity: spot` needs"),
    "elasticmapreduce": ("AWSServiceRoleForEMRCleanup", "`cloud: emr` needs"),
}


@dataclass(frozen=True)
class Finding:
    """What one check found; `remedy` is what to do about it."""

    check: str
    verdict: str
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Account:
    """Whose account is examined: its number, and the ARN of the caller."""

    number: str
    caller: str


def examine(api: Aws, home: Aws) -> tuple[Account | None, list[Finding]]:
    """Return the account and what was found, the worst first; `home` is the partition's first region.

    In a region that the account has not enabled nothing else can be asked, and the account is None.
    """
    if off := _region(api, home):
        return None, [off]
    identity = api.call("sts", "get_caller_identity")
    account = Account(identity["Account"], identity["Arn"])
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = chain.from_iterable(pool.map(lambda check: _asked(check, api, account), CHECKS.items()))
        order = (STOPS, NOTE, UNKNOWN, OK)
        return account, sorted(found, key=lambda one: order.index(one.verdict))


_Check = Callable[["Aws", Account], Iterator[tuple[str, str, str]]]


def _asked(check: tuple[str, _Check], api: Aws, account: Account) -> list[Finding]:
    name, ask = check
    try:
        return [Finding(name, *found) for found in ask(api, account)]
    except CloudError as error:
        return [Finding(name, UNKNOWN, error.message, error.hint or "")]


def _region(api: Aws, home: Aws) -> Finding | None:
    """Return a finding if the region is not enabled."""
    if not regions.is_off(home, api.region):
        return None
    return Finding("region", STOPS, *regions.off(api.region))


def _public_access(api: Aws, _: Account) -> Iterator[tuple[str, str, str]]:
    mode = vpcs.public_access_mode(api)
    if not mode:
        yield OK, "VPC Block Public Access is off", ""
        return
    yield (
        STOPS,
        existing_vpc.blocked(mode, api.region),
        "Write `network: {access: private}`, or have an administrator exclude your VPC and name its subnets.",
    )


def _new_vpc(api: Aws, _: Account) -> Iterator[tuple[str, str, str]]:
    """Ask EC2 by a dry run, which makes nothing, whether the caller may make a VPC."""
    try:
        api.call("ec2", "create_vpc", CidrBlock="10.0.0.0/16", DryRun=True)
    except CloudError as error:
        refused = code(error.__cause__)
        if refused == "DryRunOperation":
            yield OK, "you may make a VPC", ""
        elif refused == "UnauthorizedOperation":
            yield (
                STOPS,
                f"you may not make a VPC: {message(error.__cause__)}",
                "Name subnets: `network: {head_subnet: …}`.",
            )
        else:
            raise


def _shared_subnets(api: Aws, account: Account) -> Iterator[tuple[str, str, str]]:
    shared = [one for one in api.pages("ec2", "describe_subnets", "Subnets") if one["OwnerId"] != account.number]
    if not shared:
        yield OK, "no other account shares subnets with this one", ""
        return
    listed = ", ".join(
        f"{one['SubnetId']} ({one['AvailabilityZone']}, {one['AvailableIpAddressCount']} free)" for one in shared
    )
    yield NOTE, f"other accounts share subnets: {listed}", "`head_subnet` and `worker_subnet` may name them."


def _disks(api: Aws, account: Account) -> Iterator[tuple[str, str, str]]:
    if not (key := lookups.disk_key(api)):
        yield OK, "disks are encrypted with AWS's own key, or not at all", ""
        return
    if not api.call("ec2", "get_ebs_encryption_by_default")["EbsEncryptionByDefault"]:
        yield OK, f"disks are not encrypted by default, although {key} is the default key", ""
        return
    partition = account.caller.split(":")[1]
    role = f"arn:{partition}:iam::{account.number}:role/aws-service-role/autoscaling.amazonaws.com/{_AUTO_SCALING}"
    grant = (
        f"`aws kms create-grant --region {api.region} --key-id {key} --grantee-principal {role} --operations Encrypt"
        " Decrypt ReEncryptFrom ReEncryptTo GenerateDataKey GenerateDataKeyWithoutPlaintext DescribeKey CreateGrant`"
    )
    try:
        named = kms_keys.let_in(api, key)
    except CloudError as error:
        text = f"disks are encrypted with {key}, and whether {_AUTO_SCALING} may use it is not known: {error.message}"
        yield UNKNOWN, text, f"If it may not: {grant}"
        return
    if not kms_keys.lacks(named, role, ("kms:Decrypt", "kms:GenerateDataKey*", "kms:CreateGrant")):
        yield OK, f"{_AUTO_SCALING} may use the default key of disks, {key}", ""
    elif kms_keys.ANYBODY in named:
        text = f"disks are encrypted with {key}, and its policy may let in {_AUTO_SCALING} without naming it"
        yield UNKNOWN, text, f"If it does not: {grant}"
    else:
        yield STOPS, f"disks are encrypted with {key}, and no grant or key policy lets {_AUTO_SCALING} use it", grant


def _metadata(api: Aws, _: Account) -> Iterator[tuple[str, str, str]]:
    found = api.call("ec2", "get_instance_metadata_defaults").get("AccountLevel", {})
    if found.get("HttpEndpoint") == "disabled":
        text = "instances have no metadata by default; phalanx's nodes switch it on for themselves"
        yield NOTE, text, "For `cloud: emr`, ask whether EMR's nodes have them: phalanx can't set that there."
    else:
        yield OK, "instances have metadata by default", ""


def _images(api: Aws, _: Account) -> Iterator[tuple[str, str, str]]:
    """EC2 itself hides the images that the account's Allowed AMIs leave out (docs/aws-behaviour.md 2.71)."""
    if api.call("ec2", "get_allowed_images_settings")["State"] != "enabled":
        yield OK, "images of every owner may be launched", ""
        return
    known = table("images")
    usual = {name: known["images"][name]["parameter"] for name in (known["default"]["cpu"], known["default"]["gpu"])}
    paths = {name: path.format(arch="amd64", cpu="x86_64") for name, path in usual.items()}
    if hidden := [name for name, path in paths.items() if lookups.image(api, path) is None]:
        text = f"the account's Allowed AMIs leave out {' and '.join(hidden)}"
        yield STOPS, text, "Write an `image:` that is allowed; images of your own account always are."
    else:
        yield NOTE, "the account's Allowed AMIs restrict images; the usual ones are allowed", ""


def _service_roles(api: Aws, account: Account) -> Iterator[tuple[str, str, str]]:
    missing = {service: role for service, role in _ROLES.items() if not api.exists("iam", "get_role", RoleName=role[0])}
    for service, (name, whose) in missing.items():
        text = f"{whose} {name}, which does not exist yet; AWS makes it then, if you have iam:CreateServiceLinkedRole"
        domain = (
            "amazonaws.com.cn" if service == "elasticmapreduce" and ":aws-cn:" in account.caller else "amazonaws.com"
        )
        yield NOTE, text, f"`aws iam create-service-linked-role --aws-service-name {service}.{domain}`"
    if not missing:
        yield OK, "the roles of services exist", ""


def _boundary(api: Aws, account: Account) -> Iterator[tuple[str, str, str]]:
    kind, _, rest = account.caller.rpartition(":")[2].partition("/")
    name = rest.split("/")[0 if kind == "assumed-role" else -1]
    described: dict[str, Any] = {}
    if kind == "user":
        described = api.call("iam", "get_user", UserName=name)["User"]
    elif kind == "assumed-role":
        described = api.call("iam", "get_role", RoleName=name)["Role"]
    if boundary := described.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn"):
        text = f"a permissions boundary bounds you: {boundary}"
        yield NOTE, text, f"Roles that you make may need it, too: `permissions_boundary: {boundary}`."
    else:
        yield OK, "no permissions boundary bounds you", ""


def _tag_policy(api: Aws, _: Account) -> Iterator[tuple[str, str, str]]:
    try:
        found = api.call("organizations", "describe_effective_policy", PolicyType="TAG_POLICY")
        rules = json.loads(found["EffectivePolicy"]["PolicyContent"])["tags"].values()
    except CloudError as error:
        if not is_gone(error.__cause__) and "NotInUse" not in code(error.__cause__):
            raise
        rules = ()
    except (ValueError, KeyError, AttributeError):
        yield UNKNOWN, "the organisation's tag policy can't be read", ""
        return
    enforced = [one for one in rules if isinstance(one, dict) and one.get("enforced_for")]
    for one in enforced:
        values = ", ".join(str(value) for value in one.get("tag_value", ())) or "any value"
        text = f"the organisation's tag policy binds {one.get('tag_key', 'a tag')} to {values}"
        yield NOTE, text, f"`tags: {{{one.get('tag_key', 'KEY')}: …}}` sets it on all that a cluster makes."
    if not enforced:
        yield OK, "no tag policy is enforced", ""


def _quotas(api: Aws, _: Account) -> Iterator[tuple[str, str, str]]:
    asked, unknown = usage.ask(api, "", quotas.of_any_cluster())
    if unknown:
        yield UNKNOWN, unknown, ""
        return
    for one in asked:
        if one.free < one.needed:
            # Another class of types, or another way of buying, may have room.
            verdict = NOTE if one.unit == "vCPU" else STOPS
            text = f"“{one.name}” leaves {one.free} of {quotas.amount(one.limit or 0, one.unit)}, {one.used} in use"
            yield verdict, text, quotas.request(one, api.region)
    room = ", ".join(f"{one.name}: {one.free} of {one.limit}" for one in asked if one.free)
    yield OK, f"free: {room}", ""


CHECKS: dict[str, _Check] = {
    "vpc-block-public-access": _public_access,
    "new-vpc": _new_vpc,
    "disk-key": _disks,
    "allowed-images": _images,
    "quotas": _quotas,
    "service-roles": _service_roles,
    "permissions-boundary": _boundary,
    "tag-policy": _tag_policy,
    "metadata": _metadata,
    "shared-subnets": _shared_subnets,
}
