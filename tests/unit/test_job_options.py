"""Options of `phalanx run` that are fields of a job."""

from __future__ import annotations

import click
import pytest

from phalanx.cli.job_options import Duration
from phalanx.errors import JobError
from phalanx.jobs.job_model import JobSpec


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("0", 0)])
def test_a_time_has_a_unit_or_is_in_seconds(text, seconds):
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "x", "-5", "1.5", "5x", "5 s"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)


@pytest.mark.parametrize("grace_s", [-1, 601])
def test_the_grace_has_a_limit(grace_s):
    with pytest.raises(JobError):
        JobSpec(("true",), grace_s=grace_s)
