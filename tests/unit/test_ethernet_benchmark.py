"""benchmarks/ethernet.py: which samples it takes, and what it reports of them."""

from __future__ import annotations

from benchmarks import ethernet

UNSHAPED = ethernet.CASES[-1]
SPEEDS = ethernet.wanted_speeds(1, part="unshaped")


def speed(choice: str, nodes: int = 2, gains: tuple[float, ...] = (1.0,)) -> ethernet.Sample:
    rounds = [{"alone_s": 1.0, "plain_s": gain, "chosen_s": 1.0} for gain in gains]
    key = {"kind": "speed", "case": UNSHAPED.name, "nodes": nodes, "number": 0}
    return {**key, "choice": choice, "alone_s": 1.0, "plain_s": 1.0, "chosen_s": 1.0, "rounds": rounds}


def accuracy(choice: str, seed: int) -> ethernet.Sample:
    return {"kind": "accuracy", "choice": choice, "seed": seed, "accuracy": 89.0}


def test_a_part_of_a_name_chooses_cases():
    assert [(key["case"], key["nodes"]) for key in SPEEDS] == [(UNSHAPED.name, 2), (UNSHAPED.name, 4)]
    assert ethernet.wanted_speeds(1, part="3 Gbit/s") == []
    assert len(ethernet.wanted_speeds(5)) == 50


def test_every_choice_that_a_sample_took_is_trained():
    plain = [accuracy("plain", seed) for seed in ethernet.SEEDS]
    trained = [speed("plain"), speed("fp16", 4), *plain, accuracy("fp16", 1)]
    assert ethernet.missing(trained, SPEEDS) == [
        {"kind": "accuracy", "choice": "fp16", "seed": seed} for seed in (2, 3)
    ]


def test_what_was_chosen_with_two_nodes_is_trained_before_four_are_measured():
    left = ethernet.missing([speed("plain")], SPEEDS)
    assert left == [*({"kind": "accuracy", "choice": "plain", "seed": seed} for seed in (1, 2, 3)), SPEEDS[1]]


def test_choices_of_other_cases_are_not_trained():
    other = {**speed("fp16"), "case": ethernet.CASES[0].name}
    assert not any(key.get("choice") == "fp16" for key in ethernet.missing([other], SPEEDS))


def test_an_unshaped_link_is_judged_by_the_median_of_all_pairs():
    samples = [speed("plain", gains=(0.9, 0.97, 0.97, 0.97)), speed("fp16", gains=(1.1, 1.1, 0.97, 0.97))]
    words = ethernet.row(UNSHAPED, 2, samples, {"plain": 89.0, "fp16": 88.0})
    assert "0.97   0.90-1.10" in words
    assert words.endswith("fp16: 88.00 %, plain: 89.00 %  MISSED")
