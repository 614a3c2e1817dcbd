"""Curves of several jobs as charts: which belong into one, and each as text or, by matplotlib, as a picture."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.ui.scalars import Points

MOST_CHARTS = 24
MARKS = "*o+x#%@&"
"""What draws the lines of a chart; more lines than these are not drawn in one."""
_HEIGHT, _NARROWEST = 10, 20
# matplotlib can't place the ticks of an axis that reaches to the largest number.
_LARGEST_DRAWN = 1e300
# A point between two gaps has no line.
_FEW = 50
_INCHES, _COLUMNS, _STYLES = (5.0, 3.2), 2, ("-", "--", ":", "-.")


@dataclass
class Chart:
    """A scalar of one or several jobs: its name, the file or directory with it, and the points by the job's label."""

    name: str
    place: str
    lines: dict[str, Points] = field(default_factory=dict)


def charts(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Chart]:
    """Return charts of the curves of each job, by its label: curves of one name are in one chart.

    Where a job has several of that name, as of training and validation, only those of the same place are.
    """
    several = {
        one["name"]
        for curves in found.values()
        for one in curves
        if any(other["name"] == one["name"] and other["place"] != one["place"] for other in curves)
    }
    made: dict[tuple[str, str], Chart] = {}
    for label, curves in found.items():
        for one in curves:
            key = one["name"], one["place"] if one["name"] in several else ""
            chart = made.setdefault(key, Chart(one["name"], one["place"]))
            # After a restart, several files may have parts of it.
            chart.lines[label] = sorted([*chart.lines.get(label, ()), *one["points"]], key=lambda point: point[0])
    return list(made.values())


def as_text(chart: Chart, width: int) -> Iterator[str]:
    """Yield the lines of a chart that is so many columns wide, and a line for each job, with its mark."""
    lines = dict(zip(MARKS, chart.lines.values(), strict=False))
    known = [(step, value) for points in lines.values() for step, value in points if value is not None]
    yield f"{chart.name}  ({chart.place})"
    if known:
        yield from _canvas(lines, known, width)
    for mark, label in zip(MARKS, chart.lines, strict=False):
        yield f"  {mark} {label}: {last_value(chart.lines[label])}"


def _canvas(lines: Mapping[str, Points], known: Sequence[tuple[float, float]], width: int) -> Iterator[str]:
    left, right = min(step for step, _ in known), max(step for step, _ in known)
    low, high = min(value for _, value in known), max(value for _, value in known)
    margin = max(len(number(low)), len(number(high)))
    columns = max(_NARROWEST, width - margin - 2)
    cells = [[" "] * columns for _ in range(_HEIGHT)]
    # The first line is drawn last, over the others.
    for mark, points in reversed(list(lines.items())):
        at: tuple[int, int] | None = None
        for step, value in points:
            if value is None:
                at = None
                continue
            new = _share(step, left, right, columns), _HEIGHT - 1 - _share(value, low, high, _HEIGHT)
            for column, row in _between(at or new, new):
                cells[row][column] = mark
            at = new
    for row, line in enumerate(cells):
        label = number(high) if row == 0 else number(low) if row == _HEIGHT - 1 else ""
        yield f"{label:>{margin}} |{''.join(line)}".rstrip()
    first, last = number(left), number(right)
    yield f"{' ' * margin} +{'-' * columns}"
    yield f"{' ' * margin}  {first}{last:>{max(1, columns - len(first))}}"


def _share(value: float, low: float, high: float, cells: int) -> int:
    """Return the cell of a value. Halves, because the difference of two large numbers may be infinite."""
    span = high / 2 - low / 2
    return round((value / 2 - low / 2) / span * (cells - 1)) if span else 0


def _between(begin: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the cells of a line."""
    steps = max(abs(end[0] - begin[0]), abs(end[1] - begin[1]), 1)
    for at in range(steps + 1):
        yield tuple(round(one + (other - one) * at / steps) for one, other in zip(begin, end, strict=True))  # type: ignore[misc]


def number(value: float) -> str:
    """Return a number in a few characters."""
    return f"{value:.4g}"


def last_value(points: Points) -> str:
    """Return the newest value of a curve in words."""
    if not points:
        return "no value yet"
    step, value = points[-1]
    return f"{'not a number' if value is None else number(value)} at {number(step)}"


def as_picture(drawn: Sequence[Chart]) -> bytes:
    """Return the charts as a PNG. Raises ModuleNotFoundError without matplotlib."""
    # Here, because it takes a second, and is in an extra.
    from matplotlib import figure, rc_context

    rows = -(-len(drawn) // _COLUMNS)
    columns = min(len(drawn), _COLUMNS)
    # The names are whatever a job wrote: no formulas, and letters that the font lacks are drawn as boxes.
    with rc_context({"text.parse_math": False, "text.usetex": False}), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = figure.Figure(figsize=(_INCHES[0] * columns, _INCHES[1] * rows), layout="constrained")
        axes = whole.subplots(rows, columns, squeeze=False).flat
        for axis, chart in zip(axes, drawn, strict=False):
            _draw(axis, chart)
        for axis in list(whole.axes)[len(drawn) :]:
            axis.remove()
        file = io.BytesIO()
        whole.savefig(file, format="png", dpi=110)
    return file.getvalue()


def _draw(axis: Any, chart: Chart) -> None:
    for at, (label, points) in enumerate(chart.lines.items()):
        steps, values = zip(*_drawable(points), strict=True) if points else ((), ())
        # matplotlib leaves out a label that begins with "_".
        dots = "." if len(points) < _FEW else ""
        axis.plot(steps, values, dots + _STYLES[at % len(_STYLES)], label=f" {label[:60]}", linewidth=1.3)
    axis.set_title(chart.name[:60], fontsize=10)
    axis.set_xlabel(chart.place[-60:], fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)


def _drawable(points: Iterable[tuple[float, float | None]]) -> Iterator[tuple[float, float]]:
    for step, value in points:
        yield (
            min(max(step, -_LARGEST_DRAWN), _LARGEST_DRAWN),
            (float("nan") if value is None or abs(value) > _LARGEST_DRAWN else value),
        )
