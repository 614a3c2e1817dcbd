"""Reads what the job of `phalanx check net` printed. Any job can print such lines, so all of it is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phalanx.counts import first_of
from phalanx.errors import JobError
from phalanx.jobs.check_net import Link, Network
from phalanx.node import validate
from phalanx.node.validate import Invalid

MOST_BYTES = 256 << 20
"""Twice what 1,000 nodes print."""
_ENGINES = ("gloo", "mpi", "nccl")
_WORDS_CHARACTERS = 200
_SIZES_MOST = 100
_LARGEST_BYTES = 1 << 40
_FASTEST_BIT_S = 1e15
_LONGEST_S = 1e6


def network(text: bytes, names: Mapping[str, str]) -> Network:
    """Return what the text says; `names` are the nodes' by address. Raises JobError for one that is incomplete."""
    try:
        document = validate.parse(text)
        addresses, with_efa = _nodes(_listed(document, "nodes"))
        nodes = [names.get(address, address) for address in addresses]
        links = _links(_listed(document, "links"), nodes)
        sums = _listed(document, "sums")
        if len(sums) != len(nodes):
            raise Invalid(f"it has {len(sums)} sums for {len(nodes)} nodes")
        by_node = list(zip(nodes, sums, strict=True))
        failed = [_of(node, _CUT, one)["error"] for node, one in by_node if isinstance(one, dict) and "error" in one]
        if failed:
            return Network(nodes, links, no_engine=first_of(sorted(set(failed)), "; "))
        found = [_of(node, _SUM, one) for node, one in by_node]
    except Invalid as error:
        raise JobError(f"the nodes' result can't be read: {error}", code="invalid-answer") from error
    return Network(
        nodes,
        links,
        found[0]["engine"],
        found[0]["times"],
        transports={node: one["transport"] for node, one in zip(nodes, found, strict=True)},
        with_efa=frozenset(node for node, has_efa in zip(nodes, with_efa, strict=True) if has_efa),
    )


def _listed(document: Any, name: str) -> list[Any]:
    return validate.fields({name: _list}, document)[name]


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Invalid("it is not a list")
    return value


def _of(node: str, checks: Mapping[str, Callable[[Any], Any]], item: Any) -> dict[str, Any]:
    """Return the checked fields of a node's answer. Raises Invalid, which names the node."""
    try:
        return validate.fields(checks, item)
    except Invalid as error:
        raise Invalid(f"the answer of {node}: {error}") from error


def _nodes(items: Sequence[Any]) -> tuple[list[str], list[bool]]:
    addresses = [validate.fields(_NODE, item)["address"] for item in items]
    if not addresses or len(set(addresses)) < len(addresses):
        raise Invalid("it has no nodes, or one of them twice")
    return addresses, [_of(node, _ADAPTER, item)["efa"] for node, item in zip(addresses, items, strict=True)]


def _links(items: Sequence[Any], nodes: Sequence[str]) -> list[Link]:
    """Return the links of every two nodes, in both directions."""

    def number(value: Any) -> int:
        return validate.count(value, len(nodes) - 1)

    links: dict[tuple[int, int], Link] = {}
    for item in items:
        way = validate.fields({"from": number, "to": number}, item)
        sender: int = way["from"]
        receiver: int = way["to"]
        measured = _of(nodes[sender], _CUT if "error" in item else _LINK, item)
        links[sender, receiver] = Link(sender=nodes[sender], receiver=nodes[receiver], **measured)
    loops = sum(sender == receiver for sender, receiver in links)
    if loops or not len(links) == len(items) == len(nodes) * (len(nodes) - 1):
        raise Invalid("it has not one link from each node to each other")
    return list(links.values())


def _number(most: float, least: float = 0.0) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        if type(value) not in (int, float) or not least <= value <= most:
            raise Invalid(f"{value!r:.60} is not a number from {least:g} to {most:g}")
        return float(value)

    return check


def _words(value: Any) -> str:
    return validate.reason(value).replace("\n", " ")[:_WORDS_CHARACTERS]


def _engine(value: Any) -> str:
    if value not in _ENGINES:
        raise Invalid(f"{value!r:.60} is no engine")
    return value


def _size(value: Any) -> int:
    if validate.count(value, _LARGEST_BYTES) == 0:
        raise Invalid("0 bytes take no time")
    return value


def _times(value: Any) -> list[tuple[int, float]]:
    if not 1 <= len(_list(value)) <= _SIZES_MOST:
        raise Invalid(f"it has {len(value)} sizes")
    found = [validate.fields(_TIME, one) for one in value]
    return [(one["bytes"], one["s"]) for one in found]


_NODE, _ADAPTER = {"address": validate.address}, {"efa": validate.truth}
_LINK = {"bit_s": _number(_FASTEST_BIT_S), "round_trip_s": _number(_LONGEST_S)}
_CUT = {"error": _words}
_TIME = {"bytes": _size, "s": _number(_LONGEST_S, 1e-9)}
_SUM = {"engine": _engine, "transport": _words, "times": _times}
