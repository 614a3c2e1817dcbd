"""Steps and values in the output of ranks: what counts, at what cost, and what is said of it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from error_codes import raises_code

from phalanx.jobs.job_model import JobSpec
from phalanx.node.validate import Invalid
from phalanx.runner import frames, rank_progress
from phalanx.runner.head.steps import Steps
from phalanx.runner.rank_progress import Progress, RankProgress
from phalanx.runner.starter import counting
from phalanx.runner.starter.counting import Counting


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(counting, "time", clock)
    return clock


@pytest.fixture
def counts(clock) -> Counting:
    counts = Counting()
    counts.look_for(r"step (\d+)")
    counts.add(7)
    return counts


def reported(counts: Counting) -> dict[str, object]:
    frame = counts.report(is_last=True)
    if not frame:
        return {}
    [(kind, _, _, payload)] = frames.FrameReader().feed(frame)
    assert kind == frames.PROGRESS
    return frames.body_of(kind, payload)


def test_steps_are_counted_over_pieces_of_lines_and_progress_bars(counts, clock):
    counts.read(7, 1, b"begin\nstep 1 of")
    clock.now += 2
    counts.read(7, 1, b" 9\nst")
    counts.read(7, 2, b"\rstep 2/9\r")
    counts.read(7, 1, b"ep 1")
    assert reported(counts)["ranks"] == [[7, 2, 0.0, {}]]
    clock.now += 2
    counts.read(7, 1, b"1\nother\n")
    assert reported(counts)["ranks"] == [[7, 11, 5.0, {}]]
    assert counts.lowest() == (11, 5.0)
    assert reported(counts) == {}


def test_a_step_that_begins_again_has_a_rate_of_its_own(counts, clock):
    for step in (100, 200, 1, 3):
        counts.read(7, 1, b"step %d\n" % step)
        last = reported(counts)["ranks"]
        clock.now += 2
    assert last == [[7, 3, 1.0, {}]]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (b"phalanx: loss=0.25 samples_per_s=1e3", {"loss": 0.25, "samples_per_s": 1000.0}),
        (b"phalanx: loss=-1.", {"loss": -1.0}),
        (b"phalanx: step=12 loss=1", {"loss": 1.0}),
        (b"phalanx: loss=nan", {}),
        (b"phalanx: loss=1 and more", {}),
        (b"phalanx: \x1b[2J=1", {}),
        (b"phalanx: a=" + b"9" * 17, {}),
        (b" phalanx: loss=1", {}),
        (b"phalanx: " + b"a" * 33 + b"=1", {}),
        (b"phalanx:", {}),
    ],
)
def test_what_a_script_says_of_itself(counts, line, values):
    counts.read(7, 1, line + b"\nstep 12\n")
    assert reported(counts)["ranks"] == [[7, 12, 0.0, values]]


def test_values_are_at_most_eight_and_others_processes_are_none(counts):
    counts.read(7, 1, b"phalanx: " + b" ".join(b"v%d=1" % number for number in range(20)) + b"\n")
    counts.read(8, 1, b"phalanx: loss=1\n")
    [[number, step, rate, values]] = reported(counts)["ranks"]  # type: ignore[misc]
    assert (number, step, len(values)) == (7, None, 8)
    assert rank_progress.checked([step, rate, values]).values == values


def test_of_much_output_the_newest_is_read_and_lines_that_were_cut_do_not_count(counts, clock):
    counts.read(7, 1, b"x" * 100_000)
    counts.read(7, 1, b"step 5\nstep 6\n")  # the first is the end of a line, and there is no room for both
    assert reported(counts) == {}
    clock.now += 3
    counts.read(7, 1, b"step 7 of the line before\nstep 8\n")
    assert reported(counts)["ranks"] == [[7, 8, 0.0, {}]]
    counts.read(7, 1, b"step 9" + b" " * 2000)
    counts.read(7, 1, b"\n")
    assert reported(counts) == {}


def test_what_is_sent_has_a_budget_and_ended_ranks_are_sent_once(counts, clock):
    for number in range(100, 200):
        counts.add(number)
        counts.read(number, 1, b"step 12345\nphalanx: loss=0.123456\n")
        counts.end(number)
    frame = counts.report()
    assert len(frame) > 2000 and counts.lowest() == (0.0, 0.0)
    counts.read(7, 1, b"step 1\n")
    clock.now += len(frame) / 128 - 0.1
    assert counts.report() == b""
    clock.now += 0.2
    assert b"[[7,1,0.0,{}]]" in counts.report()


@pytest.mark.parametrize("step", ["step", "(", "x" * 201, "(a{99999999999})"])
def test_an_expression_without_a_group_or_that_is_none_is_refused(step):
    with raises_code("bad-step"):
        JobSpec(("true",), step=step)


def test_an_expression_that_this_python_does_not_know_is_reported(clock):
    counts = Counting()
    counts.look_for("(?<broken")
    assert str(reported(counts)["problem"]).startswith("--step: ")


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        ["1", 0.0, {}],
        [1.0, 0.0, {}],
        [True, 0.0, {}],
        [-1, 0.0, {}],
        [1 << 60, 0.0, {}],
        [1, -1.0, {}],
        [1, float("nan"), {}],
        [1, 1.0, {"\x1b": 1.0}],
        [1, 1.0, {"a": float("inf")}],
        [1, 1.0, {"a": "1"}],
        [1, 1.0, []],
        [1, 1.0, {f"v{number}": 1.0 for number in range(9)}],
    ],
)
def test_progress_that_no_rank_has_is_refused_and_dropped(value):
    with pytest.raises(Invalid):
        rank_progress.checked(value)
    steps = Steps()
    steps.take("worker1", [("rank 0", value)] if value else [], "")
    assert steps.answer() == [] and steps.advanced_at == 0


def of(rank: int, step: int, rate: float, age_s: float = 0.0) -> RankProgress:
    return RankProgress(f"rank {rank}", "worker1", age_s, Progress(step, rate, {}))


def test_a_straggler_is_much_slower_than_the_median_or_has_stopped():
    even = [of(rank, 10, 2.0) for rank in range(3)]
    assert rank_progress.straggler([*even, of(3, 9, 1.9)]) is None
    assert rank_progress.straggler([*even, of(3, 5, 1.0)]).rank == "rank 3"  # type: ignore[union-attr]
    assert rank_progress.straggler([*even, of(4, 5, 2.0, age_s=30)]).rank == "rank 4"  # type: ignore[union-attr]
    assert rank_progress.straggler([of(0, 1, 0.01, age_s=250), of(1, 1, 0.01)]) is None
    assert rank_progress.straggler([]) is None and rank_progress.straggler([of(0, 1, 0)]) is None
    words = rank_progress.in_words([*even, of(3, 5, 1.0)])
    assert words == "step 5 to 10, 2 a second; straggler: rank 3 on worker1, 1 a second"


def test_a_summary_has_the_last_step_after_the_last_attempt_too():
    steps = Steps(lambda: 5.0)
    steps.take("worker1", [("rank 0", [12, 1.5, {"loss": 0.25}]), ("\x1b[2J", [1, 1.0, {}])], "")
    assert steps.advanced_at == 5.0
    assert steps.summary() == ["step 12, 1.5 a second", "last values: loss 0.25"]
    assert json.loads(json.dumps(steps.answer()))[0]["progress"] == [12, 1.5, {"loss": 0.25}]
    steps.begin()
    assert (steps.answer(), steps.summary(), steps.advanced_at) == ([], ["step 12, 1.5 a second"], 0.0)
