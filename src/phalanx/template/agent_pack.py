"""Packs the agent's modules, without comments and docstrings, into one LZMA stream that is cut into two stages."""

from __future__ import annotations

import ast
import base64
import bisect
import lzma
from collections.abc import Mapping, Sequence

# Extra bytes in stage 1, for other versions of the decoder, which may read ahead.
_AHEAD_BYTES = 24


def pack(stage_1: Sequence[str], stage_2: Sequence[str], sources: Mapping[str, str], unpack: str) -> tuple[str, str]:
    """Return both stages in base64, the same for one version of Python; `unpack` is the code that runs first.

    One stream is 1 KB smaller than two, because stage 2 repeats much of stage 1.
    """
    short = {name: strip(text) for name, text in sources.items()}
    first = "\0".join([unpack, *_named(stage_1, short), ""]).encode()
    stream = _compressed(first + "\0".join(_named(stage_2, short)).encode())
    cut = bisect.bisect_left(range(len(stream)), len(first), key=lambda end: _unpacked(stream[:end])) + _AHEAD_BYTES
    return base64.b64encode(stream[:cut]).decode(), base64.b64encode(stream[cut:]).decode()


def strip(source: str) -> str:
    """Return a module's source without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [item for item in node.body if not _is_text(item)] or [ast.Pass()]
    return ast.unparse(tree)


def _is_text(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


def _named(names: Sequence[str], sources: Mapping[str, str]) -> list[str]:
    return [part for name in names for part in (name, sources[name])]


def _compressed(text: bytes) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA1, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 0, "pb": 0, "nice_len": 64}]
    return lzma.compress(text, format=lzma.FORMAT_ALONE, filters=filters)


def _unpacked(beginning: bytes) -> int:
    """Count the bytes of text that the beginning of a stream unpacks to."""
    return len(lzma.LZMADecompressor().decompress(beginning))
