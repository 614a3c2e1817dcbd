"""Elastic Fabric Adapters: what EC2 says of a type's network cards, and whether a cluster can use them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.errors import SpecError
from phalanx.spec.spec import ClusterSpec

_ADDRESSED, _WITH_ADDRESS, _ALONE = "interface", "efa", "efa-only"


@dataclass(frozen=True)
class Card:
    """A network card: how many interfaces it takes, and the kind that is only for EFA; "" if it has none."""

    index: int
    most: int
    efa: str


PLAIN = (Card(0, 1, ""),)
"""The card of a node without adapters."""


def cards(described: Mapping[str, Any]) -> tuple[Card, ...]:
    """Return the cards of a type as DescribeInstanceTypes describes it; none if it takes no EFA."""
    network = described.get("NetworkInfo", {})
    if not network.get("EfaSupported"):
        return ()
    return tuple(
        Card(one["NetworkCardIndex"], one["MaximumNetworkInterfaces"], _efa(one.get("InterfaceTypes", ())))
        for one in network["NetworkCards"]
    )


def listed(groups: Sequence[tuple[int, int, str]]) -> tuple[Card, ...]:
    """Return the cards that the table lists: how many are alike, the interfaces on each, and their kind for EFA."""
    kinds = [(most, efa) for number, most, efa in groups for _ in range(number)]
    return tuple(Card(index, *kind) for index, kind in enumerate(kinds))


def _efa(kinds: Any) -> str:
    """Return "efa-only", which takes no address, or else "efa"."""
    return next((kind for kind in (_ALONE, _WITH_ADDRESS) if kind in kinds), "")


def adapters(found: tuple[Card, ...]) -> int:
    """Return how many adapters a node gets."""
    return sum(bool(card.efa) for card in found)


def layout(cards: Sequence[Card]) -> Iterator[tuple[int, int, str]]:
    """Yield the card, the device number on it and the kind of each interface; the first one has the node's address.

    As AWS recommends (docs/aws-behaviour.md 2.5, 2.6).
    """
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


def addresses(cards: Sequence[Card]) -> int:
    """Return how many private addresses a node with these adapters takes."""
    return sum(kind != _ALONE for _, _, kind in layout(cards))


def refuse_impossible(spec: ClusterSpec, found: tuple[Card, ...]) -> None:
    """Raise SpecError if the nodes can't have the adapters that the spec wants."""
    if not spec.uses_efa:
        return
    if not found:
        raise SpecError(
            f"efa: {spec.type} has no Elastic Fabric Adapter",
            "Remove the line, or choose a type that has one: `aws ec2 describe-instance-types --filters "
            "Name=network-info.efa-supported,Values=true` lists them.",
            code="no-efa",
        )
    if len(found) > 1 and not spec.head:
        raise SpecError(
            f"efa: a head of type {spec.type} would have {len(found)} network cards, and EC2 gives no public address "
            "to an instance with several",
            "Add a head that does not train, such as `head: {type: m5.xlarge}`; the workers have all cards.",
            code="no-public-address",
        )
