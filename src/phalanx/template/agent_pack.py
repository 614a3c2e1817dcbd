"""Packs the agent's modules: shortened, as one LZMA stream, cut where its first stage can be unpacked."""

from __future__ import annotations

import base64
import bisect
import lzma
from collections.abc import Mapping, Sequence

from phalanx.template.shorten import shorten

# Bytes of the stream beyond those that stage 1 needs here, for decoders of other versions, which may read ahead.
_AHEAD_BYTES = 24


def pack(stage_1: Sequence[str], stage_2: Sequence[str], sources: Mapping[str, str], unpack: str) -> tuple[str, str]:
    """Both stages in base85, the same for one version of Python; `unpack` is the code that comes first.

    One stream and not two, because stage 2 says much that stage 1 has said: 1 KB less.
    """
    short = shorten(sources)
    first = "\0".join([unpack, *_named(stage_1, short), ""]).encode()
    stream = _compressed(first + "\0".join(_named(stage_2, short)).encode())
    cut = bisect.bisect_left(range(len(stream)), len(first), key=lambda end: _unpacked(stream[:end])) + _AHEAD_BYTES
    return base64.b85encode(stream[:cut]).decode(), base64.b85encode(stream[cut:]).decode()


def _named(names: Sequence[str], sources: Mapping[str, str]) -> list[str]:
    return [part for name in names for part in (name, sources[name])]


def _compressed(text: bytes) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA1, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 0, "pb": 0, "nice_len": 64}]
    return lzma.compress(text, format=lzma.FORMAT_ALONE, filters=filters)


def _unpacked(beginning: bytes) -> int:
    """How many bytes of text the beginning of a stream gives."""
    return len(lzma.LZMADecompressor().decompress(beginning))
