"""What people have removed by hand of what a cluster's stack made and its nodes need: routes, rules, policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from phalanx.aws.model import Resource

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_EVERYWHERE = "0.0.0.0/0"
# The resource that gives it, and what must have it: the route's table, the rule's group, the policy's role.
_ROUTES = {"PublicRoute": "PublicRouteTable", "PrivateRoute": "PrivateRouteTable"}
_RULES = {"NodesFromNodes": "NodeSecurityGroup", "HeadSecurityGroup": "HeadSecurityGroup"}
_POLICIES = ("HeadRole", "WorkerRole")
_POLICY = "NodePolicy"


def find(cloud: Aws, resources: Sequence[Resource]) -> list[str]:
    """Return one sentence for each thing that is missing. Raises CloudError."""
    made = {one.logical_id: one.physical_id for one in resources}
    return [*_routes(cloud, made), *_rules(cloud, made), *_policies(cloud, made)]


def _routes(cloud: Aws, made: Mapping[str, str]) -> Iterator[str]:
    tables = {made[table]: table for route, table in _ROUTES.items() if route in made and table in made}
    if not tables:
        return
    found = cloud.call("ec2", "describe_route_tables", RouteTableIds=list(tables))["RouteTables"]
    for one in found:
        if _EVERYWHERE not in [route.get("DestinationCidrBlock") for route in one["Routes"]]:
            yield f"{tables[one['RouteTableId']]} ({one['RouteTableId']}) has lost its route to {_EVERYWHERE}"


def _rules(cloud: Aws, made: Mapping[str, str]) -> Iterator[str]:
    groups = {made[group]: group for rule, group in _RULES.items() if rule in made and group in made}
    if not groups:
        return
    found = cloud.call("ec2", "describe_security_groups", GroupIds=list(groups))["SecurityGroups"]
    for one in found:
        if not one["IpPermissions"]:
            yield f"security group {groups[one['GroupId']]} ({one['GroupId']}) has lost its rules: it lets nothing in"


def _policies(cloud: Aws, made: Mapping[str, str]) -> Iterator[str]:
    """A role has its own policy, and the one that nodes share."""
    if _POLICY not in made:
        return
    for role in (made[role] for role in _POLICIES if role in made):
        if len(cloud.call("iam", "list_role_policies", RoleName=role)["PolicyNames"]) <= 1:
            yield f"role {role} has lost a policy of its nodes' rights"
