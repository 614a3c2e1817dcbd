"""AWS::EC2 security groups and their rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from moto.ec2.exceptions import EC2ClientError

from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources.network import ec2
from localcloud.cloudformation.resources.registry import Made, Request, all_or_nothing, resource

DIRECTIONS = (("ingress", "SecurityGroupIngress"), ("egress", "SecurityGroupEgress"))


def _delete_group(request: Request, physical_id: str) -> None:
    backend = ec2(request)
    if backend.get_security_group_from_id(physical_id) is None:
        return
    backend.delete_security_group(group_id=physical_id)


@resource("AWS::EC2::SecurityGroup", _delete_group, "GroupId Id VpcId")
def _group(request: Request) -> Made:
    properties, backend = request.properties, ec2(request)
    group = backend.create_security_group(
        request.name("GroupName", 255),
        properties["GroupDescription"],
        vpc_id=properties.get("VpcId"),
        tags=request.tag_map(),
    )
    if properties.get("SecurityGroupEgress"):
        # Rules replace the default that allows everything; an empty list leaves it (docs/aws-behaviour.md 2.68).
        group.egress_rules.clear()
    with all_or_nothing(_delete_group, request, group.id):
        for direction, key in DIRECTIONS:
            for rule in properties.get(key, []):
                authorize(backend, direction, group.id, rule)
    return Made(group.id, {"GroupId": group.id, "Id": group.id, "VpcId": group.vpc_id})


def authorize(backend: Any, direction: str, group_id: str, rule: Mapping[str, Any]) -> str:
    """Add one rule as templates write it; return its id."""
    rules, _ = getattr(backend, f"authorize_security_group_{direction}")(group_id, **_permission(rule))
    return rules[0].id


def revoke_rule(backend: Any, direction: str, group_id: str, rule: Mapping[str, Any]) -> None:
    """Remove one rule as templates write it; one that somebody has removed is no error."""
    with _gone_already():
        getattr(backend, f"revoke_security_group_{direction}")(group_id, **_permission(rule))


def _permission(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule as moto takes it."""
    description = {"Description": rule["Description"]} if "Description" in rule else {}
    ranges = [{key: rule[key], **description} for key in ("CidrIp", "CidrIpv6") if key in rule]
    peer = rule.get("SourceSecurityGroupId") or rule.get("DestinationSecurityGroupId")
    if not ranges and not peer:
        raise ResourceFailed("Exactly one of CidrIp, CidrIpv6 or a security group must be specified in a rule")
    return {
        "ip_protocol": str(rule["IpProtocol"]),
        "from_port": rule.get("FromPort", -1),
        "to_port": rule.get("ToPort", -1),
        "ip_ranges": ranges,
        "source_groups": [{"GroupId": peer, **description}] if peer else [],
    }


@contextmanager
def _gone_already() -> Iterator[None]:
    """Ignore that a rule does not exist."""
    try:
        yield
    except EC2ClientError as error:
        if "NotFound" not in str(error.code):
            raise


def _revoke(direction: str, request: Request, physical_id: str) -> None:
    backend = ec2(request)
    group_id = request.properties["GroupId"]
    if backend.get_security_group_from_id(group_id) is None:
        return
    with _gone_already():
        getattr(backend, f"revoke_security_group_{direction}")(
            group_id, "", "", "", [], security_rule_ids=[physical_id]
        )


def _revoke_ingress(request: Request, physical_id: str) -> None:
    _revoke("ingress", request, physical_id)


def _revoke_egress(request: Request, physical_id: str) -> None:
    _revoke("egress", request, physical_id)


@resource("AWS::EC2::SecurityGroupIngress", _revoke_ingress, "Id")
def _ingress(request: Request) -> Made:
    if "GroupId" not in request.properties:
        raise ResourceFailed("GroupId is missing: a VPC's groups are identified by id")
    rule = authorize(ec2(request), "ingress", request.properties["GroupId"], request.properties)
    return Made(rule, {"Id": rule})


@resource("AWS::EC2::SecurityGroupEgress", _revoke_egress, "Id")
def _egress(request: Request) -> Made:
    rule = authorize(ec2(request), "egress", request.properties["GroupId"], request.properties)
    return Made(rule, {"Id": rule})
