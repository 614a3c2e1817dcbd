"""The network interfaces of a node with Elastic Fabric Adapters, laid out from the type's cards as AWS recommends.

Nothing about types is written here: EC2 says which cards a type has, and what each takes (docs/aws-behaviour.md 2.5,
2.6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from troposphere import Ref, ec2

from phalanx.plan.network_cards import Card

_ADDRESSED, _WITH_ADDRESS, _ALONE = "interface", "efa", "efa-only"


def layout(cards: Sequence[Card]) -> Iterator[tuple[int, int, str]]:
    """Yield the card, the device number on it and the kind of each interface; the first one has the node's address."""
    first, *others = cards
    if not others or first.most == 1:
        yield 0, 0, _WITH_ADDRESS if first.efa else _ADDRESSED
    else:
        yield 0, 0, _ADDRESSED
        if first.efa:
            yield 0, 1, first.efa
    for card in others:
        if card.efa:
            yield card.index, 0, card.efa


def of(cards: Sequence[Card], groups: Sequence[str]) -> list[ec2.NetworkInterfaces]:
    """Return the interfaces of a launch template, each in these security groups."""
    return [
        ec2.NetworkInterfaces(
            NetworkCardIndex=card, DeviceIndex=device, InterfaceType=kind, Groups=[Ref(group) for group in groups]
        )
        for card, device, kind in layout(cards)
    ]
