"""What others have put into a cluster's VPC, which keeps it from being deleted (docs/aws-behaviour.md 11.14)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.aws import tags
from phalanx.aws.model import Resource
from phalanx.aws.refusals import code
from phalanx.errors import CloudError
from phalanx.spec.own_tags import CLUSTER_TAG

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_ENDED = ("deleting", "deleted")
# In the name of the group of a head with a public address.
_HEAD_GROUP = "-HeadSecurityGroup-"


def delete_guard_duty(api: Aws, vpc: str) -> list[str]:
    """Delete what GuardDuty's runtime monitoring made there; return what still exists. Call it until nothing does.

    An endpoint's interface is deleted some time after the endpoint, and only then the security group can be.
    """
    endpoints = [e for e in _endpoints(api, vpc) if e["ServiceName"].endswith(".guardduty-data")]
    new = [endpoint["VpcEndpointId"] for endpoint in endpoints if endpoint["State"].lower() not in _ENDED]
    if new:
        api.call("ec2", "delete_vpc_endpoints", VpcEndpointIds=new)
    groups = [g for g in _security_groups(api, vpc) if g["GroupName"] == f"GuardDutyManagedSecurityGroup-{vpc}"]
    kept = [group for group in groups if not _deleted(api, group["GroupId"])]
    return [_line("VPC endpoint", one["VpcEndpointId"], one["ServiceName"]) for one in endpoints] + [
        _line("security group", one["GroupId"], one["GroupName"]) for one in kept
    ]


def find(api: Aws, cluster: str, vpc: str) -> list[str]:
    """Return a readable line for each endpoint, interface and security group that is not the cluster's own."""
    in_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
    interfaces = api.pages("ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=in_vpc)
    return [
        *(
            _line("VPC endpoint", e["VpcEndpointId"], e["ServiceName"])
            for e in _endpoints(api, vpc)
            if not tags.is_of(e, cluster)
        ),
        *(_line("network interface", one["NetworkInterfaceId"], one.get("Description", "")) for one in interfaces),
        *(
            _line("security group", g["GroupId"], g["GroupName"])
            for g in _security_groups(api, vpc)
            if not tags.is_of(g, cluster)
        ),
    ]


def sharers(api: Aws, cluster: str, resources: Sequence[Resource]) -> list[str]:
    """Return the names of other clusters whose nodes are in a VPC of these resources, or mount their file system."""
    groups = [*_tagged(api, "vpc-id", _ids(resources, "AWS::EC2::VPC")), *_behind_endpoints(api, resources)]
    own = _ids(resources, "AWS::EC2::SecurityGroup")
    let_in = {pair["GroupId"] for group in _described(api, "group-id", own) for pair in _pairs(group)}
    groups += _tagged(api, "group-id", sorted(let_in.difference(own)))
    return sorted({tags.cluster_of(group) for group in groups} - {cluster, ""})


def _behind_endpoints(api: Aws, resources: Sequence[Resource]) -> list[dict[str, Any]]:
    """Return the groups of clusters in the VPC of these endpoints whose heads have no public address.

    They may have no other way to AWS: an existing VPC has one endpoint of each service, of the cluster that came first.
    """
    made = _ids(resources, "AWS::EC2::VPCEndpoint")
    every = api.pages("ec2", "describe_vpc_endpoints", "VpcEndpoints") if made else ()
    groups = list(_tagged(api, "vpc-id", sorted({one["VpcId"] for one in every if one["VpcEndpointId"] in made})))
    public = {tags.cluster_of(group) for group in groups if _HEAD_GROUP in group["GroupName"]}
    return [group for group in groups if tags.cluster_of(group) not in public]


def _ids(resources: Sequence[Resource], kind: str) -> list[str]:
    return [one.physical_id for one in resources if one.resource_type == kind and one.physical_id]


def _pairs(group: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for rule in group["IpPermissions"]:
        yield from rule.get("UserIdGroupPairs", [])


def _tagged(api: Aws, name: str, values: list[str]) -> Iterator[dict[str, Any]]:
    return _described(api, name, values, {"Name": "tag-key", "Values": [CLUSTER_TAG]})


def _described(api: Aws, name: str, values: list[str], *more: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the security groups whose property is one of these values."""
    chosen = [{"Name": name, "Values": values}, *more]
    return api.pages("ec2", "describe_security_groups", "SecurityGroups", Filters=chosen) if values else iter(())


def services(api: Aws, vpc: str) -> list[str]:
    """Return the services of the VPC's endpoints, whoever made them."""
    return sorted(one["ServiceName"].rpartition(".")[2] for one in _endpoints(api, vpc))


def _endpoints(api: Aws, vpc: str) -> list[dict[str, Any]]:
    """Return the endpoints that exist; an answer may also contain those that were deleted."""
    found = api.pages("ec2", "describe_vpc_endpoints", "VpcEndpoints", Filters=[{"Name": "vpc-id", "Values": [vpc]}])
    return [endpoint for endpoint in found if endpoint["State"].lower() != "deleted"]


def _security_groups(api: Aws, vpc: str) -> list[dict[str, Any]]:
    in_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
    found = api.pages("ec2", "describe_security_groups", "SecurityGroups", Filters=in_vpc)
    return [group for group in found if group["GroupName"] != "default"]


def _deleted(api: Aws, group: str) -> bool:
    """Delete a security group; return False while an interface still has it."""
    try:
        api.call("ec2", "delete_security_group", GroupId=group)
    except CloudError as error:
        if code(error.__cause__) == "DependencyViolation":
            return False
        raise
    return True


def _line(kind: str, identity: str, what: str) -> str:
    return f"{kind} {identity}" + (f" ({what})" if what else "")
