"""Draw how often things have happened by each time, and shares of a whole, as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

_WIDTH, _HEIGHT, _MARGIN = 720, 320, 50
_WIDE, _HIGH = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN
# Of the width, so that a label fits beside a whole.
_LONGEST_BAR = 0.75
_COLOURS = ("#888", "#06c", "#c60")


def cumulative(lines: Mapping[str, Sequence[float]], total: int) -> str:
    """Return an SVG with a line for each label, which rises by one at each of its times in s, up to `total`."""
    last_s = max(max(times_s) for times_s in lines.values())
    axis = (_text(_x(at_s, last_s), _HEIGHT - _MARGIN + 18, f"{at_s} s") for at_s in range(0, int(last_s) + 1, 50))
    drawn = (_line(number, label, times_s, last_s, total) for number, (label, times_s) in enumerate(lines.items()))
    return _svg([*drawn, *axis, _text(_MARGIN - 40, _MARGIN, str(total))])


def bars(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Return an SVG with a row for each group, which has a horizontal bar for each of its shares (0 to 1)."""
    parts, y = [_text(_MARGIN, 20, title)], 40
    for name, shares in groups.items():
        parts.append(_text(_MARGIN, y, name))
        for number, (label, share) in enumerate(shares.items()):
            colour, wide = _COLOURS[number], share * _WIDE * _LONGEST_BAR
            parts.append(f'<rect x="{_MARGIN}" y="{y + 5}" width="{wide:.0f}" height="12" fill="{colour}"/>')
            parts.append(_text(_MARGIN + wide + 6, y + 15, f"{share:.0%} {label}", colour))
            y += 15
        y += 25
    return _svg(parts, y)


def _svg(parts: Iterable[str], height: int = _HEIGHT) -> str:
    box = f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12"'
    frame = (f'<svg xmlns="http://www.w3.org/2000/svg" {box}>', '<rect width="100%" height="100%" fill="white"/>')
    return "\n".join([*frame, *parts, "</svg>\n"])


def _line(number: int, label: str, times_s: Sequence[float], last_s: float, total: int) -> str:
    heights = (_HEIGHT - _MARGIN - (n + 1) / total * _HIGH for n in range(len(times_s)))
    points = " ".join(f"{_x(at_s, last_s):.1f},{y:.1f}" for at_s, y in zip(sorted(times_s), heights, strict=True))
    colour = _COLOURS[number]
    shown = f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>'
    return shown + _text(_MARGIN + 10, _MARGIN + 16 * number, label, colour)


def _x(at_s: float, last_s: float) -> float:
    return _MARGIN + at_s / last_s * _WIDE


def _text(x: float, y: float, text: str, colour: str = "black") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}">{text}</text>'
