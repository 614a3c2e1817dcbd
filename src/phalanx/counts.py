"""Counts as people read them: 1 node, 4 nodes, 12 bytes, 3.4 MiB, "a, b and 7 more"."""

from __future__ import annotations

from collections.abc import Iterable

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an `s` unless there is one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size_text(size_bytes: int) -> str:
    """Return a number of bytes in the largest unit that it fills."""
    for unit, unit_bytes in _UNITS:
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f} {unit}"
    return counted(size_bytes, "byte")


def first_of(texts: Iterable[str], between: str = ", ", most: int = 20) -> str:
    """Join the first `most` texts, and say how many more there are: a list that others wrote has no end."""
    found = list(texts)
    ends = " and " if between == ", " else between + "and "
    return between.join(found[:most]) + (f"{ends}{len(found) - most:,} more" if len(found) > most else "")
