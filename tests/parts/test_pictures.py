"""`phalanx plot --output` with matplotlib: a PNG of whatever names and numbers a job has written."""

from __future__ import annotations

from phalanx.ui.drawing import Chart, as_picture


def test_any_name_and_number_becomes_a_picture(recwarn):
    lines = {
        "_hidden": [(1.0, 1e308), (2.0, -1e308), (3.0, None), (1e308, 5e-324)],
        "日本 $x$": [(1.0, 2.0)],
        "none": [],
    }
    drawn = [Chart(name, "$\\frac{", lines) for name in ("loss $\\frac{<b>", "_", "x" * 120)]
    picture = as_picture(drawn)
    assert picture.startswith(b"\x89PNG\r\n\x1a\n") and len(picture) > 10_000
    assert not recwarn.list
