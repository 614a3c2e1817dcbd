"""The nodes' volumes: the root and /dev/shm of each are memory, of which all nodes together have a bounded part.

Linux lets a tmpfs grow to half of the memory, and a node has two: a few could fill a machine, which then ends processes
that have nothing to do with nodes. A full volume here is a full disk instead: whoever writes gets ENOSPC.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from phalanx.localcloud import kernel

# A node writes 6 MiB as it boots: it has this much whatever the others hold.
_LEAST_BYTES = 16 << 20
# As mke2fs gives them: an inode takes a KiB of the kernel's memory, which no size counts.
_BYTES_PER_INODE = 16384


class Pool:
    """Volumes of one kind, which share `size_bytes` in equal parts: the more there are, the smaller is each.

    Lives in the mount namespace of its maker: a volume outlives the node that uses it, until `unmount`.
    """

    def __init__(self, size_bytes: int, mode: str, owner: int, flags: int = 0) -> None:
        self._size_bytes = size_bytes
        self._options = f"mode={mode},uid={owner},gid={owner}"
        self._flags = flags
        self._most_bytes: dict[Path, int] = {}

    def mount(self, path: Path, most_bytes: int | None = None) -> None:
        """An empty volume, never larger than `most_bytes`. Raises OSError."""
        path.mkdir(parents=True, exist_ok=True)
        kernel.mount("tmpfs", path, "tmpfs", self._flags, f"{self._options},{_limits(_LEAST_BYTES)}")
        self._most_bytes[path] = most_bytes or self._size_bytes
        self._divide()

    def unmount(self, path: Path) -> None:
        """Its data is lost once no node uses it; no error when there is none."""
        if self._most_bytes.pop(path, None) is not None:
            kernel.unmount(path)
            self._divide()

    def close(self) -> None:
        """Unmount all."""
        for path in list(self._most_bytes):
            self.unmount(path)

    def _divide(self) -> None:
        sizes = shares(self._size_bytes, [_used_bytes(path) for path in self._most_bytes])
        for (path, most), size in zip(self._most_bytes.items(), sizes, strict=True):
            self._resize(path, min(most, size))

    def _resize(self, path: Path, size_bytes: int) -> None:
        try:
            kernel.mount("tmpfs", path, None, kernel.MS_REMOUNT | self._flags, _limits(size_bytes))
        except OSError as problem:
            if problem.errno != errno.EINVAL:  # it holds more than that by now, and keeps its size
                raise


def size_bytes(path: Path) -> int:
    """What the volume at `path` can hold at present."""
    known = os.statvfs(path)
    return known.f_blocks * known.f_frsize


def shares(pool_bytes: int, used: Sequence[int]) -> list[int]:
    """The sizes of volumes that hold so much: equal parts, but whoever holds more keeps that, at the others' cost."""
    fair = pool_bytes // max(1, len(used))
    kept = [size for size in used if size > fair]
    rest = (pool_bytes - sum(kept)) // max(1, len(used) - len(kept))
    return [size if size > fair else max(size, rest, _LEAST_BYTES) for size in used]


def _limits(size_bytes: int) -> str:
    return f"size={size_bytes},nr_inodes={size_bytes // _BYTES_PER_INODE}"


def _used_bytes(path: Path) -> int:
    known = os.statvfs(path)
    return (known.f_blocks - known.f_bfree) * known.f_frsize
