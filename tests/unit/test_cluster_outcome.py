"""The outcome of a cluster's creation, as the head signals it."""

from __future__ import annotations

import json

from rosters import ROSTER

from phalanx.node import outcome
from phalanx.node.roster import Missing


def test_it_fits_however_much_is_missing():
    missing = tuple(Missing(f"deeplearning-worker{n}", "no capacity " * 30) for n in range(2, 1000))
    for count, kept in ((1, 1), (30, 30), (998, 0)):
        text = outcome.summary(ROSTER._replace(missing=missing[:count]))
        assert len(text.encode()) <= 4000
        assert len(json.loads(text)["missing"]) == kept
