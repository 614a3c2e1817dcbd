"""Writes event files as TensorBoard's writers do, for tests; jobs import it, too."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def event_file(events: Sequence[bytes]) -> bytes:
    """Return a file with these events, after the one with the version."""
    version = b"\x09" + struct.pack("<d", 1.8e9) + _bytes(3, b"brain.Event:2")
    return b"".join(map(record, (version, *events)))


def record(data: bytes) -> bytes:
    """Return a record of TensorFlow's format."""
    length = struct.pack("<Q", len(data))
    return length + _crc(length) + data + _crc(data)


def scalar(tag: str, step: int, value: float, form: str = "simple") -> bytes:
    """Return an event with a scalar: a `simple` value, or a tensor with a `float` or `double`."""
    tensors = {"float": (1, _bytes(4, struct.pack("<f", value))), "double": (2, _bytes(6, struct.pack("<d", value)))}
    if form == "simple":
        content = b"\x15" + struct.pack("<f", value)
    else:
        kind, data = tensors[form]
        content = _bytes(8, b"\x08" + _varint(kind) + b"\x12\x00" + data)
    summary = _bytes(1, _bytes(1, tag.encode()) + content)
    return b"\x09" + struct.pack("<d", 1.8e9) + b"\x10" + _varint(step) + _bytes(5, summary)


def _bytes(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def _crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
