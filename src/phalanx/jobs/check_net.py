"""Checks a cluster's network: the job that measures it, and the verdict on what it found."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.jobs.environments import Environment
from phalanx.jobs.job_model import JobSpec
from phalanx.jobs.own_code import write_package

RESULT = "phalanx-net "
"""How the lines of the job's result begin (phalanx.netcheck)."""
# A node or link is slow below this share of what the others carry, or of what its type promises.
_SLOW = 0.5
# Python sends no more than about this, so a faster promise can't be checked by it.
_MOST_BIT_S = 10e9
_LATE, _LATE_S = 5.0, 0.001


@dataclass(frozen=True)
class Link:
    """One direction between two nodes. `error` says why it carries nothing."""

    sender: str
    receiver: str
    bit_s: float = 0.0
    round_trip_s: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Network:
    """What the nodes measured. `sums` are the times of an all-reduce by its size; `engine` is "" without an engine."""

    nodes: Sequence[str]
    links: Sequence[Link]
    engine: str = ""
    sums: Sequence[tuple[int, float]] = ()
    no_engine: str = ""
    transports: Mapping[str, str] = field(default_factory=dict)
    with_efa: frozenset[str] = frozenset()

    def sends_bit_s(self, node: str) -> float:
        """Return what the node sends to the peer that receives most: one slow peer does not count against it."""
        return max((link.bit_s for link in self.links if link.sender == node), default=0.0)

    def receives_bit_s(self, node: str) -> float:
        return max((link.bit_s for link in self.links if link.receiver == node), default=0.0)

    def round_trip_s(self, node: str) -> float:
        """Return the round trip to the nearest peer."""
        return min((link.round_trip_s for link in self.links if node == link.sender and not link.error), default=0.0)

    def bus_bit_s(self, size_bytes: int, took_s: float) -> float:
        """Return what each node's link carries in an all-reduce: 2 (n - 1) / n times its size (nccl-tests)."""
        ranks = len(self.nodes)
        return 2 * (ranks - 1) / ranks * size_bytes * 8 / took_s


def job(directory: Path, launcher: str, environment: Environment | None) -> JobSpec:
    """Return the job that measures, one process on each node; its code is written into `directory`."""
    write_package("netcheck", directory)
    command = ("python3", "-m", "phalanx.netcheck")
    return JobSpec(command, launcher, per_node=1, directory=directory, name="check-net", environment=environment)


def problems(found: Network, promised_bit_s: Mapping[str, float]) -> list[str]:
    """Return what is wrong, each with its node: links that are cut or slow, nodes that are slow, late or on TCP.

    `promised_bit_s` is what each node's type has at all times, for nodes whose type promises something.
    """
    cut = [f"{one.sender} can't reach {one.receiver}: {one.error}" for one in found.links if one.error]
    slow = _slow_nodes(found, promised_bit_s)
    return [*cut, *slow.values(), *_slow_links(found, slow), *_late_nodes(found), *_fallen_back(found)]


def _slow_nodes(found: Network, promised_bit_s: Mapping[str, float]) -> dict[str, str]:
    """Return a sentence for each node whose link is slow, compared with the other nodes' or with the promise."""
    texts: dict[str, str] = {}
    for does, rate in (("sends", found.sends_bit_s), ("receives", found.receives_bit_s)):
        rates = {node: rate(node) for node in found.nodes}
        usual = statistics.median(rates.values())
        for node, bit_s in rates.items():
            promised = promised_bit_s.get(node, 0.0)
            if 0 < bit_s < usual * _SLOW:
                texts.setdefault(node, f"{node} {does} {gbit(bit_s)}, the others {gbit(usual)}")
            elif 0 < bit_s < min(promised, _MOST_BIT_S) * _SLOW:
                texts.setdefault(node, f"{node} {does} {gbit(bit_s)}, its type promises {gbit(promised)}")
    return texts


def _slow_links(found: Network, slow: Mapping[str, str]) -> list[str]:
    """Return a sentence for each slow link between nodes that are not slow themselves."""
    texts = []
    for one in found.links:
        able = min(found.sends_bit_s(one.sender), found.receives_bit_s(one.receiver))
        if not slow.keys() & {one.sender, one.receiver} and 0 < one.bit_s < able * _SLOW:
            texts.append(f"{one.sender} sends {gbit(one.bit_s)} to {one.receiver}, but {gbit(able)} to others")
    return texts


def _late_nodes(found: Network) -> list[str]:
    times_s = {node: found.round_trip_s(node) for node in found.nodes}
    usual_s = statistics.median(times_s.values())
    late = {node: took_s for node, took_s in times_s.items() if took_s > max(usual_s * _LATE, usual_s + _LATE_S)}
    return [
        f"{node} answers after {took_s * 1e3:.2f} ms, the others after {usual_s * 1e3:.2f} ms"
        for node, took_s in late.items()
    ]


def _fallen_back(found: Network) -> list[str]:
    """Return a sentence for each node that has an EFA which NCCL or MPI does not use."""
    library = {"nccl": "NCCL", "mpi": "MPI"}.get(found.engine)
    return [
        f"{node} has an Elastic Fabric Adapter, but {library} uses {transport}"
        for node, transport in found.transports.items()
        if node in found.with_efa and _is_slow(found.engine, transport)
    ]


def _is_slow(engine: str, transport: str) -> bool:
    """Whether an engine names a transport that is no EFA; MPI does not always name one."""
    if engine == "mpi":
        return transport.startswith("TCP")
    return engine == "nccl" and not any(word in transport.lower() for word in ("libfabric", "ofi", "efa"))


def gbit(bit_s: float) -> str:
    return f"{bit_s / 1e9:.3g} Gbit/s"
