"""Few choices of options contain every pair that a plan accepts, and the soak of pairs says what became of them."""

from __future__ import annotations

import pytest
from benchmarks.covering import Array, contained, pairs
from benchmarks.options import OPTIONS, planned
from benchmarks.pairs import Result, accepts, array, report, text

from phalanx.spec.cloud_names import is_local
from phalanx.spec.spec_load import load
from phalanx.template import LIMIT_BYTES, request

SEED = 1


@pytest.fixture(scope="module")
def made() -> Array:
    return array(SEED)


def test_every_pair_that_a_plan_accepts_is_in_one_of_few_choices_that_it_accepts(made):
    every = {pair for two in pairs() for pair in contained(two)}
    assert len(every) == len(list(pairs())) > 1200
    assert made.covered | made.refused == every
    assert not made.covered & made.refused
    assert made.covered == {pair for choice in made.choices for pair in contained(choice)}
    assert all(accepts(choice) for choice in made.choices)
    assert len(made.choices) <= 60


def test_few_pairs_are_refused_and_no_other_option_makes_one_of_them_accepted(made):
    assert 10 < len(made.refused) < 50
    refused = [two for two in pairs() if contained(two) <= made.refused]
    others = [{field: value} for field, values in OPTIONS.items() for value in values]
    assert [two for two in refused if any(accepts({**other, **two}) for other in ({}, *others))] == []


def test_the_documents_of_all_choices_fit(made):
    plans = [planned(choice) for choice in made.choices]
    assert all(plan and len(request(plan)[0].encode()) <= LIMIT_BYTES for plan in plans)


def test_a_choice_is_a_file_for_two_local_nodes_at_most(made, tmp_path):
    file = tmp_path / "phalanx.yaml"
    for choice in made.choices:
        file.write_text(text(choice))
        spec = load(file)
        assert is_local(spec.cloud) and spec.nodes <= 2
        assert {name for name in choice if getattr(spec, name) is None} == set()
    assert {name for choice in made.choices for name in choice} == set(OPTIONS)


def test_the_report_counts_the_pairs_of_choices_that_came_up(made):
    first, second, third = made.choices[:3]
    results = [Result(0, first), Result(1, second, refused="type: no"), Result(2, third, problems=["up: failed"])]
    shown = report(made, [{**vars(one), "commit": "abc"} for one in results], SEED)
    assert f"3 of {len(made.choices)} choices of options, seed 1" in shown
    assert f"passed cfn-lint: 1; they contain {len(contained(first))} of the accepted pairs" in shown
    assert "in the local cloud: 1; failed: 1\n" in shown
    assert "1, refused: type: no" in shown and "2, commit abc: up: failed" in shown
