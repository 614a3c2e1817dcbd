"""The network interfaces of a node with Elastic Fabric Adapters, as the plan lays them out on the type's cards."""

from __future__ import annotations

from collections.abc import Sequence

from troposphere import Ref, ec2

from phalanx.plan.network_cards import Card, layout


def of(cards: Sequence[Card], groups: Sequence[str]) -> list[ec2.NetworkInterfaces]:
    """Return the interfaces of a launch template, each in these security groups."""
    return [
        ec2.NetworkInterfaces(
            NetworkCardIndex=card, DeviceIndex=device, InterfaceType=kind, Groups=[Ref(group) for group in groups]
        )
        for card, device, kind in layout(cards)
    ]
