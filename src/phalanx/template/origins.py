"""Which key of phalanx.yaml decides about a place in the document, for what CloudFormation says of that place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_OF_PARAMETERS = {
    "InstanceType": "type",
    "HeadInstanceType": "head",
    "Image": "image",
    "Zone": "zones",
    "SshLocation": "ssh_from",
    "KeyPair": "key_pair",
    "Slots": "slots",
    "SharedDirectory": "shared",
    "FileSystemId": "file_system",
    "NodeTimeout": "node_timeout",
    "LeaseEnd": "lease",
    "Idle": "idle",
    "Mail": "mail",
    "Boundary": "permissions_boundary",
    "KmsKey": "kms_key",
    **dict.fromkeys(("Vpc", "PublicSubnet", "HeadSubnet", "PrivateSubnet"), "network"),
}
# The resources that a key asks for, or decides about more than any other.
_OF_RESOURCES = {"MailSubscription": "mail", "HeadSecurityGroup": "ssh_from", "HeadLease": "lease"}
_OF_RESOURCES["WorkersLease"] = "lease"
_OF_TYPES = {
    "AWS::EC2::PlacementGroup": "placement",
    "AWS::EMR::Cluster": "emr",
    "AWS::FSx::FileSystem": "storage",
    **dict.fromkeys(("AWS::EFS::FileSystem", "AWS::EFS::MountTarget"), "storage"),
    **dict.fromkeys((f"AWS::EC2::{one}" for one in ("VPC", "Subnet", "NatGateway", "EIP", "VPCEndpoint")), "network"),
}


def key_of(document: Mapping[str, Any], logical_id: str, path: str = "") -> str:
    """Return the key behind a resource, or behind the value at a path such as /Resources/Vpc/Properties/CidrBlock.

    It is "" if none can be named.
    """
    resource = document["Resources"].get(logical_id, {})
    named = [_OF_PARAMETERS[one] for one in _parameters(_at(document, path)) if one in _OF_PARAMETERS]
    if named and len(set(named)) == 1:
        return named[0]
    return _OF_RESOURCES.get(logical_id) or _OF_TYPES.get(resource.get("Type", ""), "")


def _at(document: Any, path: str) -> Any:
    """Return the value at a path; {} if there is none, or if it is not below a resource's properties."""
    steps = path.strip("/").split("/")
    if steps[2:3] != ["Properties"] or len(steps) < len(("Resources", "logical id", "Properties", "name")):
        return {}
    found = document
    for step in steps:
        if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, Mapping) and step in found:
            found = found[step]
        else:
            return {}
    return found


def _parameters(value: Any) -> Iterator[str]:
    """Yield the names that a value refers to."""
    if isinstance(value, Mapping):
        if isinstance(value.get("Ref"), str):
            yield value["Ref"]
        for one in value.values():
            yield from _parameters(one)
    elif isinstance(value, list):
        for one in value:
            yield from _parameters(one)
