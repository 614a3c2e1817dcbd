"""Options of phalanx.yaml in random combinations: each is refused by a plan, or its document passes cfn-lint.

PHALANX_COMBINATIONS sets how many are tried, and PHALANX_SEED which (`make soak PART=combinations`).
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

import pytest
from benchmarks.options import OPTIONS, complaints, planned
from benchmarks.pairs import array
from hypothesis import HealthCheck, event, given, seed, settings
from hypothesis import strategies as st

from phalanx.spec.spec import ClusterSpec

NUMBER = int(os.environ.get("PHALANX_COMBINATIONS", "8"))
SEED = int(os.environ.get("PHALANX_SEED", "1"))


def combinations_of_options() -> st.SearchStrategy[dict[str, Any]]:
    """Choose a value for some of the options."""
    names = st.lists(st.sampled_from(sorted(OPTIONS)), min_size=2, max_size=9, unique=True)
    return names.flatmap(lambda keys: st.fixed_dictionaries({key: st.sampled_from(OPTIONS[key]) for key in keys}))


@seed(SEED)
@settings(max_examples=NUMBER, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(fields=combinations_of_options())
def test_random_combinations_pass_cfn_lint(fields):
    plan = planned(fields)
    event("refused" if plan is None else "linted")
    if plan is not None:
        assert complaints(plan) == []


@pytest.mark.parametrize("number", [0, 1, 2])
def test_choices_that_bring_every_pair_pass_cfn_lint(number):
    """`make soak PART=pairs` lints all, and brings them up in the local cloud."""
    plan = planned(array(SEED).choices[number])
    assert plan and complaints(plan) == []


def test_every_option_is_in_the_combinations():
    """Of clusters on AWS: another service, names, and the way of a large document have tests of their own, as has TLS.

    `job` is no part of a cluster.
    """
    known = {one.name for one in fields(ClusterSpec)}
    apart = {"name", "cloud", "emr", "other_types", "bucket", "job", "kms_key", "cloudformation_role", "tls"}
    assert known - apart == set(OPTIONS)
