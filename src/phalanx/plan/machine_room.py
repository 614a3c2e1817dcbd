"""Whether this machine has room for the nodes of a local cluster."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.counts import counted
from phalanx.errors import SpecError
from phalanx.spec.spec import ClusterSpec


@dataclass(frozen=True)
class Shortage:
    """A limit of this machine that leaves room for only this many nodes: what it is, and what helps."""

    nodes: int
    what: str
    fix: str

    @property
    def warning(self) -> str:
        """What the user should know of a limit that leaves room for some of the nodes."""
        return f"this machine has room for {counted(self.nodes, 'node')}: {self.what}. {self.fix}"


def refuse_without_room(shortages: tuple[Shortage, ...], spec: ClusterSpec) -> None:
    """Raise SpecError, with all limits that are too low, if not even the smallest acceptable cluster fits."""
    too_low = [one for one in shortages if one.nodes < spec.min]
    if too_low:
        said = "; ".join(one.what for one in too_low)
        raise SpecError(
            f"nodes: at least {spec.min} are needed, and this machine has room for {too_low[0].nodes}: {said}",
            "\n".join(dict.fromkeys(one.fix for one in too_low)),
            code="no-room",
        )
