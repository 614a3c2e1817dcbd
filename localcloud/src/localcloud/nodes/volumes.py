"""The nodes' volumes: each root and /dev/shm is memory, of which all nodes together get a bounded part.

By default a tmpfs may grow to half of the memory, and a node has two: a few nodes could fill the machine, which would
then kill unrelated processes. A full volume here behaves like a full disk instead: writes fail with ENOSPC.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from localcloud.nodes import kernel

# A node writes 6 MiB as it boots: it gets this much, whatever the others use.
_LEAST_BYTES = 16 << 20
# Volumes are divided again when their number has changed by this part of it. To resize all of them for each that comes
# or goes would take a thousand nodes a million remounts.
_DIVIDED_ANEW = 1 / 16
# As mke2fs does. An inode takes 1 KiB of the kernel's memory, which a tmpfs's size does not count.
_BYTES_PER_INODE = 16384


class Pool:
    """Volumes of one kind, which share `size_bytes` in about equal parts: the more there are, the smaller each is.

    `divisions` counts how often their sizes were set. They are mounted in the creator's mount namespace, so a volume
    outlives its node until `unmount`.
    """

    def __init__(self, size_bytes: int, mode: str, owner: int, flags: int = 0) -> None:
        self._size_bytes = size_bytes
        self._options = f"mode={mode},uid={owner},gid={owner}"
        self._flags = flags
        self._most_bytes: dict[Path, int] = {}
        self._share_bytes = size_bytes
        self._divided_among = 0
        self.divisions = 0

    def mount(self, path: Path, most_bytes: int | None = None) -> None:
        """Mount an empty volume of at most `most_bytes`. Raises OSError."""
        path.mkdir(parents=True, exist_ok=True)
        kernel.mount("tmpfs", path, "tmpfs", self._flags, f"{self._options},{_limits(_LEAST_BYTES)}")
        self._most_bytes[path] = most_bytes or self._size_bytes
        if not self._divide_if_due():
            self._resize(path, min(self._most_bytes[path], self._share_bytes))

    def unmount(self, path: Path) -> None:
        """Unmount a volume; its data is lost once no node uses it. No error if there is none."""
        if self._most_bytes.pop(path, None) is not None:
            kernel.unmount(path)
            self._divide_if_due()

    def close(self) -> None:
        """Unmount all volumes."""
        for path in list(self._most_bytes):
            self.unmount(path)

    def _divide_if_due(self) -> bool:
        number = len(self._most_bytes)
        due = number > 0 and abs(number - self._divided_among) > number * _DIVIDED_ANEW
        if due:
            self._divide()
        return due

    def _divide(self) -> None:
        self.divisions, self._divided_among = self.divisions + 1, len(self._most_bytes)
        sizes = shares(self._size_bytes, [_used_bytes(path) for path in self._most_bytes])
        self._share_bytes = min(sizes)
        for (path, most), size in zip(self._most_bytes.items(), sizes, strict=True):
            self._resize(path, min(most, size))

    def _resize(self, path: Path, size_bytes: int) -> None:
        try:
            kernel.mount("tmpfs", path, None, kernel.MS_REMOUNT | self._flags, _limits(size_bytes))
        except OSError as problem:
            if problem.errno != errno.EINVAL:  # it contains more than that by now, and keeps its size
                raise


def size_bytes(path: Path) -> int:
    """Return the current size of the volume at `path`."""
    known = os.statvfs(path)
    return known.f_blocks * known.f_frsize


def shares(pool_bytes: int, used: Sequence[int]) -> list[int]:
    """Return the volumes' sizes: equal parts, but a volume that uses more keeps that, at the others' expense."""
    fair = pool_bytes // max(1, len(used))
    kept = [size for size in used if size > fair]
    rest = (pool_bytes - sum(kept)) // max(1, len(used) - len(kept))
    return [size if size > fair else max(size, rest, _LEAST_BYTES) for size in used]


def _limits(size_bytes: int) -> str:
    return f"size={size_bytes},nr_inodes={size_bytes // _BYTES_PER_INODE}"


def _used_bytes(path: Path) -> int:
    known = os.statvfs(path)
    return (known.f_blocks - known.f_bfree) * known.f_frsize
