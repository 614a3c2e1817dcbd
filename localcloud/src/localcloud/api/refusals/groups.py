"""EC2's security groups: those in use, reserved names, and rules that make no sense."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from moto.ec2.exceptions import DependencyViolationError, EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.responses.security_groups import SecurityGroups

from localcloud.api.refusals.before import Given, before, canonical

_PROTOCOLS = ("-1", "all", "tcp", "udp", "icmp", "icmpv6")
_MOST_PORT = 65_535
_DESCRIPTION = re.compile(r"[a-zA-Z0-9. _\-:/()#,@\[\]+=&;{}!$*]{0,255}")


@before(SecurityGroups, "create_security_group")
def _a_name_is_reserved_or_a_vpc_unknown(response: Any, _given: Given) -> None:
    name, vpc_id = str(response._get_param("GroupName")), response._get_param("VpcId")
    if vpc_id:
        response.ec2_backend.get_vpc(vpc_id)
    if name == "default":
        raise EC2ClientError("InvalidParameterValue", "Cannot use reserved security group name: default")
    if name.startswith("sg-"):
        text = f"Invalid value '{name}' for groupName. Group names may not be in the format sg-*."
        raise EC2ClientError("InvalidParameterValue", text)


@before(EC2Backend, "create_security_group")
def _a_description_has_other_characters(_backend: Any, given: Given) -> None:
    if not _DESCRIPTION.fullmatch(str(given.description or "")):
        allowed = "a-zA-Z0-9. _-:/()#,@[]+=&;{}!$*"
        text = "Invalid security group description. Valid descriptions are strings less than 256 characters from the"
        raise EC2ClientError("InvalidParameterValue", f"{text} following set: {allowed}")


@before(SecurityGroups, "delete_security_group")
def _a_group_is_the_default_one(response: Any, _given: Given) -> None:
    group = response.ec2_backend.get_security_group_from_id(response._get_param("GroupId"))
    if group is not None and group.is_default:
        text = f'the specified group: "{group.id}" name: "default" cannot be deleted by a user'
        raise EC2ClientError("CannotDelete", text)


@before(EC2Backend, "delete_security_group")
def _a_group_is_in_use(backend: Any, given: Given) -> None:
    group_id = given.group_id
    in_use = any(group_id in [group.id for group in eni.group_set] for eni in list(backend.enis.values()))
    if group_id and (in_use or _is_named_elsewhere(backend, group_id)):
        raise DependencyViolationError(f"resource {group_id} has a dependent object")


def _is_named_elsewhere(backend: Any, group_id: str) -> bool:
    others = [group for groups in backend.groups.values() for group in groups.values() if group.id != group_id]
    rules = [rule for group in others for rule in (*group.ingress_rules, *group.egress_rules)]
    return any((rule.source_group or {}).get("GroupId") == group_id for rule in rules)


@before(EC2Backend, "authorize_security_group_ingress", "authorize_security_group_egress")
def _a_rule_makes_no_sense(_backend: Any, given: Given) -> None:
    if given.ip_protocol is None:
        raise EC2ClientError("MissingParameter", "The request must contain the parameter ipPermissions")
    protocol = str(given.ip_protocol).lower()
    if protocol not in _PROTOCOLS and not (protocol.isdecimal() and int(protocol) < 256):
        text = f"Invalid value '{protocol}' for IP protocol. Unknown protocol."
        raise EC2ClientError("InvalidParameterValue", text)
    if protocol in ("tcp", "udp", "6", "17"):
        _check_ports(int(given.from_port), int(given.to_port))
    for block in given.ip_ranges or []:
        _check_block(block if isinstance(block, str) else block.get("CidrIp") or "0.0.0.0/0")


@before(EC2Backend, *(f"{what}_security_group_{way}gress" for what in ("authorize", "revoke") for way in ("in", "e")))
def _networks_are_in_canonical_form(_backend: Any, given: Given) -> None:
    given["ip_ranges"] = [
        canonical(one) if isinstance(one, str) else {key: _kept(key, text) for key, text in one.items()}
        for one in given.ip_ranges or []
    ]


def _kept(key: str, text: Any) -> Any:
    return canonical(text) if key.startswith("Cidr") else text


@before(EC2Backend, "authorize_security_group_ingress", "authorize_security_group_egress")
def _a_peer_is_in_another_vpc(backend: Any, given: Given) -> None:
    own = backend.get_security_group_from_id(given.group_name_or_id)
    for peer in given.source_groups or []:
        group = backend.get_security_group_from_id(peer.get("GroupId"))
        if own is not None and group is not None and own.vpc_id != group.vpc_id:
            text = "You have specified two resources that belong to different networks."
            raise EC2ClientError("InvalidGroup.NotFound", text)


def _check_ports(first: int, last: int) -> None:
    if not (-1 <= first <= last <= _MOST_PORT):
        raise EC2ClientError("InvalidParameterValue", f"Invalid TCP/UDP port range ({first}:{last})")


def _check_block(block: str) -> None:
    try:
        ipaddress.ip_network(block, strict=False)
    except ValueError:
        raise EC2ClientError("InvalidParameterValue", f"CIDR block {block} is malformed") from None
