"""Draws a checked network as SVG: what each link carries, as a matrix, and the all-reduce over its sizes."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable

from phalanx.jobs.check_net import Network, gbit

_CELL, _LEFT, _TOP, _GAP = 64, 190, 60, 70
_HIGH, _WIDE = 160, 420
# So that the number in a cell stays readable.
_DARKEST = 0.6


def svg(found: Network) -> str:
    """Return the drawing; the all-reduce is left out where no engine was there."""
    matrix_height = _TOP + _CELL * len(found.nodes)
    width = max(_LEFT + _CELL * len(found.nodes) + 20, _LEFT + _WIDE + 90)
    height = matrix_height + (_GAP + _HIGH + 40 if found.sums else 20)
    parts = [*_matrix(found), *(_all_reduce(found, matrix_height + _GAP) if found.sums else ())]
    box = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    frame = (f'<svg xmlns="http://www.w3.org/2000/svg" {box}>', '<rect width="100%" height="100%" fill="white"/>')
    return "\n".join([*frame, *parts, "</svg>\n"])


def _matrix(found: Network) -> Iterable[str]:
    """Yield a row for each sender, with a cell for each receiver: the darker, the faster."""
    places = {node: number for number, node in enumerate(found.nodes)}
    fastest = max((link.bit_s for link in found.links), default=0.0) or 1.0
    yield _text(20, 24, "Gbit/s, from the row's node to the column's")
    for node, number in places.items():
        yield _text(20, _TOP + _CELL * number + 36, node)
        yield _text(_LEFT + _CELL * number + 6, _TOP - 8, node.rpartition("-")[2])
    for link in found.links:
        x, y = _LEFT + _CELL * places[link.receiver], _TOP + _CELL * places[link.sender]
        opacity = f"{_DARKEST * link.bit_s / fastest:.2f}"
        colour = 'fill="#c00"' if link.error else f'fill="#06c" fill-opacity="{opacity}"'
        yield f'<rect x="{x}" y="{y}" width="{_CELL - 2}" height="{_CELL - 2}" stroke="#ccc" {colour}/>'
        yield _text(x + 10, y + 36, "cut" if link.error else f"{link.bit_s / 1e9:.2f}")


def _all_reduce(found: Network, top: int) -> Iterable[str]:
    """Yield the all-reduce's bandwidth over its size, on a logarithmic axis."""
    rates = [(size, found.bus_bit_s(size, took_s)) for size, took_s in found.sums]
    most, first = max(rate for _, rate in rates), rates[0][0]
    span = math.log2(rates[-1][0] / first) or 1.0
    points = [
        (_LEFT + _WIDE * math.log2(size / first) / span, top + _HIGH - _HIGH * rate / (most or 1))
        for size, rate in rates
    ]
    yield _text(20, top - 20, f"all-reduce by {found.engine}: what a link carries, at most {gbit(most)}")
    yield f'<polyline fill="none" stroke="#06c" points="{" ".join(f"{x:.0f},{y:.0f}" for x, y in points)}"/>'
    for (x, y), (size, _) in zip(points, rates, strict=True):
        yield f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="#06c"/>'
        yield _text(x - 14, top + _HIGH + 20, f"{size >> 10} KiB")


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}">{html.escape(text)}</text>'
