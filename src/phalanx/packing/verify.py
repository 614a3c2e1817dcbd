"""Compares shards with the sizes and the SHA-256 that they were packed with."""

from __future__ import annotations

import hashlib
import os

from phalanx.packing.pack import Show
from phalanx.shards import File, load, sizes_wrong

_BLOCK_BYTES = 1 << 20


def verify(directory: str, show: Show) -> list[str]:
    """Return what is wrong with each file of each shard. Raises ShardError without a list of them, OSError."""
    shards = load(directory)
    wrong = [problem for shard in shards for problem in sizes_wrong(directory, shard)]
    files = [file for shard in shards if not sizes_wrong(directory, shard) for file in shard.files]
    total, read = sum(file.bytes for file in files), 0
    for file in files:
        if _sha256(directory, file) != file.sha256:
            wrong.append(f"{os.path.join(directory, file.name)} was changed: its SHA-256 is another one")
        read += file.bytes
        show(read, total)
    return wrong


def _sha256(directory: str, file: File) -> str:
    digest = hashlib.sha256()
    with open(os.path.join(directory, file.name), "rb") as content:
        while block := content.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
