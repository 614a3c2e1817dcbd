"""Finds where the last lines of a job's output begin, from the end, so that gigabytes need not be read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.runner.files.output import ENDED, OutputReader

if TYPE_CHECKING:
    from typing import Optional, Set, Tuple


def first_of_last_lines(reader: OutputReader, span: range, lines: int, label: Optional[str]) -> int:
    """Return the position in `span` after which the last `lines` lines are complete. Raises Invalid.

    `label`: count only lines of the process with this label. Output after the last newline does not count.
    """
    reader.refresh()
    cut: Set[Tuple[int, int]] = set()  # processes' streams with a line whose beginning has not been found yet
    position = span.stop
    for before, record in reader.backwards(span):
        if lines <= 0 and not cut:
            break
        position = before
        _, _, _, number, stream = record
        if stream == ENDED or label not in (None, reader.process(number)["label"]):
            continue
        newlines = reader.data(record).count(b"\n")
        if lines > 0 and newlines:
            lines -= newlines
            cut.add((number, stream))
            newlines = max(0, -lines)
        if newlines:
            cut.discard((number, stream))
    return position
