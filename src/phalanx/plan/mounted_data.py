"""The S3 prefixes of jobs, what the mounted ones contain, and whether Mountpoint suits that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from phalanx.counts import counted, size_text
from phalanx.spec.cloud_names import is_local
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_data import Place, mounted, places

MOST_COUNTED = 20_000
"""Each 1,000 take a request (docs/aws-behaviour.md 12.4)."""

MANY = 1000
SMALL_BYTES = 1 << 20
"""Of more than MANY objects that are smaller on average, the requests take longer than the bytes (12.6)."""


@dataclass(frozen=True)
class Contents:
    """What is below a prefix, or of its first objects if `is_all` is false."""

    objects: int
    bytes: int
    is_all: bool = True

    def __str__(self) -> str:
        objects = counted(self.objects, "object")
        return f"{objects}, {size_text(self.bytes)}" if self.is_all else f"more than {objects}"

    @property
    def average_bytes(self) -> int:
        return self.bytes // max(1, self.objects)

    @property
    def is_scattered(self) -> bool:
        """Whether there are many small objects."""
        return self.objects > MANY and self.average_bytes < SMALL_BYTES


def described(spec: ClusterSpec, counted: Mapping[str, Contents]) -> str:
    """Name the S3 prefixes of jobs, which of them they may change, and where they are mounted."""
    return ", ".join(_described(one, counted.get(one.name)) for one in places(spec.data))


def _described(place: Place, contents: Contents | None) -> str:
    rights = "read, write" if place.is_writable else "read"
    if not place.is_mounted:
        return f"{place.name}: {place.url} ({rights})"
    return f"{place.name}: {place.url} ({rights}; mounted at {place.directory}{f', {contents}' if contents else ''})"


def warnings(spec: ClusterSpec, counted: Mapping[str, Contents]) -> Iterator[str]:
    """Yield what users should know of their mounts, one sentence each."""
    yield from scattered(spec.data, counted)
    if mounted(spec.data) and is_local(spec.cloud):
        yield "data: a bind of the bucket's files plays Mountpoint for S3 here, because that needs /dev/fuse"


def scattered(data: Mapping[str, str] | None, counted: Mapping[str, Contents]) -> Iterator[str]:
    """Yield a sentence for each mounted prefix that has many small objects."""
    for place in mounted(data):
        found = counted.get(place.name)
        if found and found.is_scattered:
            yield (
                f"data: {place.name} has {found} of {size_text(found.average_bytes)} on average, and through a mount "
                f"every file costs requests of its own: `phalanx data stage {place.name}` copies them once, and "
                "`phalanx data shard` packs them into few large files"
            )
