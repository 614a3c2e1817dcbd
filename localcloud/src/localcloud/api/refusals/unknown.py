"""EC2's lists of resources that do not exist: the first unknown id or name, in AWS's words.

moto names all that were asked for, ignores some, or has no words. Source: AWS's page of EC2's error codes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.responses.key_pairs import KeyPairs
from moto.ec2.responses.vpcs import VPCs

from localcloud.api.refusals.before import Given, before


class _Kind(NamedTuple):
    """A list of `owner`, what of it is asked for, what of that exists, and the answer for the rest."""

    owner: type
    operation: str
    parameter: str
    existing: Callable[[Any], Iterable[str]]
    code: str
    sentence: str


def _groups(backend: Any) -> Iterable[Any]:
    return itertools.chain.from_iterable(groups.values() for groups in list(backend.groups.values()))


_KINDS = (
    _Kind(
        *(EC2Backend, "describe_internet_gateways", "internet_gateway_ids", lambda ec2: ec2.internet_gateways),
        *("InvalidInternetGatewayID.NotFound", "The internetGateway ID '{}' does not exist"),
    ),
    _Kind(
        *(EC2Backend, "describe_volumes", "volume_ids", lambda ec2: ec2.volumes),
        *("InvalidVolume.NotFound", "The volume '{}' does not exist."),
    ),
    _Kind(
        *(EC2Backend, "describe_snapshots", "snapshot_ids", lambda ec2: ec2.snapshots),
        *("InvalidSnapshot.NotFound", "The snapshot '{}' does not exist."),
    ),
    _Kind(
        *(EC2Backend, "describe_security_groups", "group_ids", lambda ec2: [one.id for one in _groups(ec2)]),
        *("InvalidGroup.NotFound", "The security group '{}' does not exist"),
    ),
    _Kind(
        *(EC2Backend, "describe_security_groups", "groupnames", lambda ec2: [one.name for one in _groups(ec2)]),
        *("InvalidGroup.NotFound", "The security group '{}' does not exist"),
    ),
    _Kind(
        *(EC2Backend, "describe_addresses", "public_ips", lambda ec2: [one.public_ip for one in ec2.addresses]),
        *("InvalidAddress.NotFound", "Address '{}' not found."),
    ),
    _Kind(
        *(EC2Backend, "describe_key_pairs", "key_names", lambda ec2: ec2.key_pairs),
        *("InvalidKeyPair.NotFound", "The key pair '{}' does not exist"),
    ),
    _Kind(
        *(KeyPairs, "describe_key_pairs", "KeyPairIds", lambda ec2: [one.id for one in ec2.key_pairs.values()]),
        *("InvalidKeyPair.NotFound", "The key pair '{}' does not exist"),
    ),
    _Kind(
        *(EC2Backend, "describe_iam_instance_profile_associations", "association_ids"),
        lambda ec2: [one.association_id for one in ec2.iam_instance_profile_associations.values()],
        *("InvalidAssociationID.NotFound", "The association ID '{}' does not exist"),
    ),
    _Kind(
        *(VPCs, "describe_prefix_lists", "PrefixListIds", lambda ec2: ec2.managed_prefix_lists),
        *("InvalidPrefixListId.NotFound", "The prefix list ID '{}' does not exist"),
    ),
    _Kind(
        *(VPCs, "describe_managed_prefix_lists", "PrefixListIds", lambda ec2: ec2.managed_prefix_lists),
        *("InvalidPrefixListID.NotFound", "The prefix list ID '{}' does not exist"),
    ),
)


def _register(kind: _Kind) -> None:
    @before(kind.owner, kind.operation)
    def _one_is_unknown(answering: Any, given: Given) -> None:
        is_backend = kind.owner is EC2Backend
        asked = given.get(kind.parameter) if is_backend else answering._get_param(kind.parameter, [])
        existing = set(kind.existing(answering if is_backend else answering.ec2_backend))
        for one in asked or ():
            if one not in existing:
                raise EC2ClientError(kind.code, kind.sentence.format(one))


for _kind in _KINDS:
    _register(_kind)


@before(KeyPairs, "describe_key_pairs")
def _key_pairs_are_asked_for_by_their_ids(response: Any, _given: Given) -> None:
    """Ask for their names, which moto knows."""
    ids = response._get_param("KeyPairIds", [])
    names = [pair.key_name for pair in response.ec2_backend.key_pairs.values() if pair.id in ids]
    if names:
        response.params["KeyNames"] = names
