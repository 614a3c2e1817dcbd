"""The key `lustre`: the FSx for Lustre file system that the stack makes (docs/aws-behaviour.md 4.8, 4.11 to 4.13)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from phalanx.spec.spec_checks import WrongError
from phalanx.spec.spec_data import Place, places
from phalanx.spec.spec_groups import group
from phalanx.spec.spec_key import Change, Needs, key
from phalanx.spec.spec_rules import number, word, words

SCRATCH, PERSISTENT = "scratch_2", "persistent_2"
SMALLEST_GIB, STEP_GIB, LARGEST_GIB = 1200, 2400, 2_400_000
THROUGHPUTS = (125, 250, 500, 1000)
"""MB/s for each TiB of a persistent file system; a scratch one has 200, which can't be chosen."""
MOST_LINKS = 8


def _size(given: int) -> None:
    if given != SMALLEST_GIB and given % STEP_GIB:
        above = SMALLEST_GIB if given < SMALLEST_GIB else -(-given // STEP_GIB) * STEP_GIB
        raise WrongError(
            f"size_gib must be {SMALLEST_GIB}, {STEP_GIB} or a multiple of {STEP_GIB}, is {given}",
            f"write {above}",
            code="out-of-range",
        )


def _fits(given: dict[str, Any]) -> dict[str, Any]:
    """Refuse what FSx would refuse, with the nearest that it accepts."""
    _size(given.get("size_gib", SMALLEST_GIB))
    throughput = given.get("throughput")
    if throughput is not None and given.get("type", SCRATCH) != PERSISTENT:
        raise WrongError(
            f"throughput can't be chosen for the type {SCRATCH}", f"write type: {PERSISTENT}", code="conflicting-keys"
        )
    if throughput is not None and throughput not in THROUGHPUTS:
        nearest = min(THROUGHPUTS, key=lambda one: abs(one - throughput))
        raise WrongError(
            f"throughput must be 125, 250, 500 or 1000, is {throughput}", f"write {nearest}", code="out-of-range"
        )
    return given


_RULE = group(
    {
        "size_gib": replace(number(1, LARGEST_GIB), allowed=f"{SMALLEST_GIB}, {STEP_GIB} or a multiple of {STEP_GIB}"),
        "type": word((SCRATCH, PERSISTENT)),
        "throughput": replace(number(1, THROUGHPUTS[-1]), allowed="125, 250, 500 or 1000"),
        "data": words(r"[a-z][a-z0-9_-]{0,31}", MOST_LINKS, "the name of an entry of `data`"),
    },
    _fits,
)


def _beside(value: Mapping[str, Any], above: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse the key without a new file system, and links to S3 that FSx would refuse."""
    if above.get("storage") != "lustre":
        raise WrongError(
            "is for FSx for Lustre", "write `storage: lustre`, or remove the line", code="conflicting-keys"
        )
    if above.get("file_system"):
        raise WrongError(
            "is for a new file system, but file_system names an existing one",
            "remove one of the two lines",
            code="conflicting-keys",
        )
    known = {place.name: place for place in places(above.get("data"))}
    names = [one for one in value.get("data") or () if isinstance(one, str)]
    if unknown := [one for one in names if one not in known]:
        raise WrongError(
            f"data names {', '.join(unknown)}, and `data` has no such entry",
            "name entries of `data`",
            code="no-data-entry",
        )
    if both := [one for one in names if known[one].is_mounted]:
        raise WrongError(
            f"data links {', '.join(both)}, which `data` mounts",
            "do one of the two: remove ` mount`",
            code="conflicting-keys",
        )
    for first, second in _overlapping([known[one] for one in names]):
        raise WrongError(
            f"data links {first.name} and {second.name}, and {first.url} contains {second.url}",
            "FSx links a prefix once: name the larger one only",
            code="conflicting-keys",
        )
    return value


def _overlapping(linked: list[Place]) -> Iterator[tuple[Place, Place]]:
    for one in linked:
        for other in linked:
            if one is not other and one.bucket == other.bucket and other.prefix.startswith(one.prefix):
                yield one, other


def size_gib(lustre: Mapping[str, Any] | None) -> int:
    """Return the size of the file system that is made."""
    return (lustre or {}).get("size_gib", SMALLEST_GIB)


def deployment(lustre: Mapping[str, Any] | None) -> str:
    """Return its deployment type: scratch_2 or persistent_2."""
    return (lustre or {}).get("type", SCRATCH)


def throughput(lustre: Mapping[str, Any] | None) -> int:
    """Return its throughput for each TiB, in MB/s; 0 for a scratch file system, which has one speed."""
    return (lustre or {}).get("throughput", THROUGHPUTS[0]) if deployment(lustre) == PERSISTENT else 0


def cannot_become(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str:
    """Return why a file system that is there can't become another; "" if it can (docs/aws-behaviour.md 4.18)."""
    if deployment(before) != deployment(now):
        return "the type of a Lustre file system can't change"
    if set((before or {}).get("data", ())) != set((now or {}).get("data", ())):
        return "its links to S3 can't change while there are nodes"
    if size_gib(now) < size_gib(before):
        return "a Lustre file system can grow, and can't become smaller"
    return ""


def linked(lustre: Mapping[str, Any] | None, data: Mapping[str, str] | None) -> list[Place]:
    """Return the S3 prefixes that appear in the file system, as data/NAME."""
    wanted = (lustre or {}).get("data", ())
    return [place for place in places(data) if place.name in wanted]


KEY: Any = key(
    "The new file system with `storage: lustre`. Its `type` is `scratch_2`, with one copy of the data, for data that "
    "is also in S3, or `persistent_2`, which replaces failed parts. `throughput` is MB/s for each TiB of a persistent "
    "one. `data` names entries of the key `data` whose objects appear as files in `data/NAME`. With ` rw`, files that "
    "jobs write there are copied to S3.",
    _RULE,
    {"size_gib": 2400, "type": PERSISTENT, "throughput": 250},
    change=Change(Needs.UPDATE, "in place, if it grows or gets faster; everything else is refused"),
    unset=f"{SMALLEST_GIB} GiB, {SCRATCH}; a persistent one has {THROUGHPUTS[0]} MB/s for each TiB",
    beside=_beside,
    default=None,
)
"""The key, as a field of ClusterSpec."""
