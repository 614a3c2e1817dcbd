"""The rule of `disk`, the root disk of every node: what EBS allows for a volume's type (docs/aws-behaviour.md 2.34)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from phalanx.spec.spec_checks import WrongError
from phalanx.spec.spec_groups import group
from phalanx.spec.spec_rules import number, word

DEFAULT_TYPE = "gp3"


@dataclass(frozen=True)
class _Type:
    """What EBS allows for a type of volume; `iops` is None where they can't be chosen."""

    size_gib: tuple[int, int]
    iops: tuple[int, int] | None = None
    iops_per_gib: int = 0
    needs_iops: bool = False


_TYPES = {
    "gp3": _Type((1, 65_536), (3_000, 80_000), 500),
    "gp2": _Type((1, 16_384)),
    "io1": _Type((4, 16_384), (100, 64_000), 50, needs_iops=True),
    "io2": _Type((4, 65_536), (100, 256_000), 1_000, needs_iops=True),
}


def _fits(given: dict[str, Any]) -> dict[str, Any]:
    """Refuse what EBS would refuse for the type, with the nearest that it accepts."""
    name = given.get("type", DEFAULT_TYPE)
    kind, iops = _TYPES[name], given.get("iops")
    if "size_gib" in given:
        _require_between("size_gib", given["size_gib"], kind.size_gib, name)
    if kind.needs_iops and iops is None:
        raise WrongError(
            f"must have iops for the type {name}", f"such as {kind.iops[0] if kind.iops else 0}", code="disk-options"
        )
    if iops is not None:
        _require_iops(name, kind, iops, given.get("size_gib"))
    if "throughput_mib_s" in given and name != "gp3":
        raise WrongError(f"can't have throughput_mib_s for the type {name}", "only gp3 has it", code="disk-options")
    return given


def _require_iops(name: str, kind: _Type, iops: int, size_gib: int | None) -> None:
    if kind.iops is None:
        raise WrongError(f"can't have iops for the type {name}", "choose the type gp3, io1 or io2", code="disk-options")
    _require_between("iops", iops, kind.iops, name)
    if size_gib is not None and iops > max(kind.iops[0], kind.iops_per_gib * size_gib):
        raise WrongError(
            f"can't have {iops} iops with {size_gib} GiB: {name} allows {kind.iops_per_gib} for each GiB",
            f"at least {-(-iops // kind.iops_per_gib)} GiB are needed",
            code="disk-options",
        )


def _require_between(key: str, value: int, bounds: tuple[int, int], name: str) -> None:
    if not bounds[0] <= value <= bounds[1]:
        raise WrongError(
            f"{key} must be from {bounds[0]} to {bounds[1]} for the type {name}, is {value}", code="out-of-range"
        )


DISK = group(
    {
        "size_gib": number(1, 65_536),
        "type": word(tuple(_TYPES)),
        "iops": number(100, 256_000),
        "throughput_mib_s": number(125, 2_000),
    },
    _fits,
)
