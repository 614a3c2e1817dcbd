"""phalanx.torch in real processes: two ranks that exchange gradients with gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RANKS = Path(__file__).parent / "gradient_ranks.py"
WITHIN_S = 600
ABOUT_CHOICES = ("every_choice", "accumulated", "double_buffering", "scaled", "overflowing")
DEATHS = ("dies", "dies_with_fp16", "dies_with_powersgd", "dies_in_suggest")
NAMES = (*ABOUT_CHOICES, "mistakes", "suggested", "settings", "forgotten", "power_sgd")


@dataclass(frozen=True)
class Rank:
    code: int
    facts: list[Any]
    errors: str


@pytest.fixture(scope="module")
def groups(tmp_path_factory) -> dict[str, list[Rank]]:
    """The ranks of each group, by the first function that the group ran."""
    directory = tmp_path_factory.mktemp("ranks")
    deaths = [f"2:{name}" for name in DEATHS]
    wanted = (f"2:{','.join(NAMES)}", "1:alone", "3:three_ranks", *deaths, "2:ends_while_gloo_computes")
    subprocess.run([sys.executable, str(RANKS), str(directory), *wanted], check=True, timeout=WITHIN_S)
    return {place.name: [rank_of(out) for out in sorted(place.glob("*.out"))] for place in directory.iterdir()}


def rank_of(out: Path) -> Rank:
    facts = [json.loads(line) for line in out.read_text().splitlines()]
    return Rank(int(out.with_suffix(".code").read_text()), facts, out.with_suffix(".err").read_text())


@pytest.fixture(scope="module")
def facts(groups) -> dict[str, list[Any]]:
    """What each rank found, by the name of the function that it ran."""
    ranks = groups[NAMES[0]]
    assert [rank.code for rank in ranks] == [0, 0], ranks[0].errors[-2000:]
    return {name: list(each) for name, *each in zip(NAMES, *(rank.facts for rank in ranks), strict=True)}


def test_with_every_choice_all_ranks_have_the_same_weights(facts):
    for found in facts["every_choice"]:
        assert [name for name, (alike, _) in found.items() if not alike] == []
        assert found["small-buckets"][1] == 0.0
        assert 0 < found["fp16"][1] < 0.001 < found["double-buffering"][1]


def test_three_ranks_have_the_same_weights_bit_for_bit(groups):
    ranks = groups["three_ranks"]
    assert [rank.code for rank in ranks] == [0, 0, 0], ranks[0].errors[-2000:]
    for found in (rank.facts[0] for rank in ranks):
        assert [alike for alike, _ in found.values()] == [True, True]
        assert 0 < found["fp16-small-buckets"][1] < 0.001 < found["powersgd"][1]


def test_accumulated_gradients_are_summed_before_they_are_sent(facts):
    for found in facts["accumulated"]:
        assert found["small-buckets"] == 0.0
        assert 0 < found["fp16-small-buckets"] < 0.001
        assert 0 < found["powersgd"] < 0.5


def test_error_feedback_in_place_is_pytorchs_bit_for_bit(facts):
    assert facts["power_sgd"] == 2 * [{"equal": 6 * [True], "approximated": [True]}]


def test_double_buffering_applies_each_gradient_once_one_step_late(facts):
    wanted = {"late by one": True, "clipped": True, "accumulated": True, "state_dict": True}
    assert facts["double_buffering"] == [wanted, wanted]


def test_a_late_gradient_keeps_the_scale_of_its_own_loss(facts):
    assert facts["scaled"] == 2 * [{"scale": 8192.0, "like unscaled": True}]
    assert facts["overflowing"] == 2 * [{"finite": True, "alike": True, "scale": 512.0}]


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("not DDP", "TypeError: the model is a Sequential: wrap it in DistributedDataParallel first"),
        ("not DDP, suggest", "TypeError: the model is a Sequential"),
        ("unknown", "ValueError: there is no choice 'fast': choose among plain, small-buckets,"),
        ("sparse", "ValueError: fp16: the network has sparse gradients"),
        ("sparse, suggest", "the network has sparse gradients, which only plain DDP exchanges"),
        ("unused", "ValueError: double-buffering: the model has find_unused_parameters"),
        ("accumulated without no_sync", "RuntimeError: double buffering: two backward passes"),
        ("twice", "ValueError: fp16: the model has a communication hook already"),
        ("own hook", "ValueError: small-buckets: the model has a communication hook already"),
        ("delayed", "ValueError: fp16: the model has delay_all_reduce_named_params"),
        ("many outputs", "TypeError: the network returns a tuple: pass `loss`"),
    ],
)
def test_a_mistake_is_an_error_on_every_rank(facts, mistake, words):
    assert [found[mistake][: len(words)] for found in facts["mistakes"]] == [words, words]


def test_unused_parameters_may_be_rounded(facts):
    assert [found["unused, fp16"] for found in facts["mistakes"]] == ["", ""]


def test_a_model_keeps_its_buffers_and_its_settings(facts):
    kept = {"lost": [], "default buckets": "default", "listed buckets": [1, 3]}
    assert facts["settings"] == [{"buffer": 1.0 + rank, **kept} for rank in range(2)]


def test_a_model_that_nothing_uses_any_more_is_forgotten(facts):
    names = ("plain", "fp16", "powersgd", "double-buffering")
    assert facts["forgotten"] == 2 * [dict.fromkeys(names, True)]


def test_a_suggestion_leaves_everything_as_it_was_and_is_the_same_everywhere(facts):
    one, other = facts["suggested"]
    assert one == other
    assert (one["unchanged"], one["gradient"]) == (True, True)
    assert one["measured"] == ["plain", "small-buckets", "fp16", "fp16-small-buckets", "bf16-small-buckets", "powersgd"]
    assert one["asked"] == ["plain", "double-buffering", "bf16-small-buckets"]
    assert f"\nsuggested: {one['choice']} (" in one["text"]


@pytest.mark.parametrize(
    ("times_s", "name", "reason"),
    [
        ({"plain": 1.0, "fp16": 0.97, "powersgd": 0.9}, "plain", "nothing is much faster"),
        ({"plain": 1.0, "fp16": 1.3}, "plain", "nothing is much faster"),
        ({"plain": 1.0, "small-buckets": 0.8, "fp16": 0.5}, "fp16", "2.00 times as fast as plain DDP"),
        ({"plain": 1.0, "fp16": 0.5, "powersgd": 0.4}, "fp16", "2.00 times as fast as plain DDP"),
        ({"plain": 1.0, "fp16": 0.6, "powersgd": 0.3}, "powersgd", "2.0 times as fast as what costs no accuracy"),
    ],
)
def test_what_costs_accuracy_must_be_much_faster(times_s, name, reason):
    from phalanx.torch import CHOICES, Measured, best_of

    measured = [Measured(CHOICES[each], took_s) for each, took_s in times_s.items()]
    assert best_of(measured) == (CHOICES[name], reason)


def test_a_world_of_one_is_left_as_it_is(groups):
    (rank,) = groups["alone"]
    assert rank.facts == [{"same": True, "reason": "there is one process, so nothing is exchanged"}], rank.errors


@pytest.mark.parametrize("death", DEATHS)
def test_a_rank_that_dies_ends_the_others_exchange_with_an_error(groups, death):
    left, died = groups[death]
    assert died.code == 9
    assert left.facts[0]["error"].startswith("RuntimeError: "), left.errors
    assert " by peer" in left.facts[0]["error"], "the connection was closed or reset"
    assert left.code == 0, left.errors


def test_an_interpreter_ends_only_after_the_threads_of_gloo_let_go_of_python(groups):
    ranks = groups["ends_while_gloo_computes"]
    assert [rank.code for rank in ranks] == [0, 0], ranks
