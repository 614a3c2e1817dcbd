"""When a job counts as stalled: by its steps, or by its output and stacks. Pure, with a clock of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from error_codes import raises_code

from phalanx.jobs.job_model import JobSpec
from phalanx.runner.head import stall
from phalanx.runner.head.stall import IdleGpus, Sample, StallWatch

HERE = [["all_reduce", "train.py", 71, True]]
THERE = [["read", "data.py", 88, True]]


def process(number: int, frames: list[Any], state: str = "S", **more: Any) -> dict[str, Any]:
    threads = [{"name": "MainThread", "frames": frames}] if frames else []
    return {"number": number, "rank": str(number), "pid": 100 + number, "state": state, "threads": threads, **more}


class Job:
    """Stands in for starters, their ranks and a clock; what the ranks do is what a test says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wrote_at = self.advanced_at = 0.0
        self.nodes: dict[str, list[Any]] = {"worker1": [process(0, HERE), process(1, THERE)]}
        self.looks = 0
        self.watch = StallWatch(60.0, self, self, lambda: self.now)  # type: ignore[arg-type]

    def look(self, take: Any) -> None:
        self.looks += 1
        wanted = take(json.dumps({"asked": [*self.nodes], "ended": [], "problem": ""}).encode())
        for node, processes in self.nodes.items():
            if processes is not None:
                assert wanted
                wanted = take(json.dumps({"node": node, "tool": "", "processes": processes}).encode())

    def passes(self, seconds: float, every_s: float = 1.0) -> list[str]:
        """Let time pass; return what was said."""
        said = []
        for _ in range(round(seconds / every_s)):
            self.now += every_s
            found = self.watch.check()
            said += [] if found is None else [found]
        return said


@pytest.fixture
def job() -> Job:
    return Job()


def test_without_a_step_equal_stacks_and_no_output_for_the_time_are_a_stall(job):
    assert job.passes(59) == []
    assert job.passes(10) == [
        "stalled: no output, and the same stacks, for 61 s; rank 0 waits in all_reduce (train.py:71); "
        "rank 1 waits in read (data.py:88)"
    ]
    assert job.passes(100) == []
    job.wrote_at = job.now
    assert job.passes(1) == [""]
    assert job.passes(50) == [] and len(job.passes(20)) == 1


def test_output_stacks_that_change_and_new_processes_are_signs_of_life(job):
    for turn in range(20):
        assert job.passes(25) == []
        if turn % 3 == 0:
            job.wrote_at = job.now
        elif turn % 3 == 1:
            job.nodes["worker1"][0] = process(0, HERE if turn % 2 else THERE)
        else:
            job.nodes["worker1"][1]["pid"] += 1
    assert job.looks > 20


def test_a_stalled_job_whose_stacks_change_goes_on(job):
    assert len(job.passes(70)) == 1
    job.nodes["worker1"][0] = process(0, THERE)
    assert job.passes(10) == [""]


def test_without_stacks_cpu_time_is_a_sign_of_life_and_with_them_it_is_none(job):
    for spent in range(30):
        job.nodes["worker1"] = [process(0, [], cpu_s=float(spent))]
        assert job.passes(6) == []
    said = []
    for spent in range(12):
        job.nodes["worker1"] = [process(0, HERE, cpu_s=spent / 100)]
        said += job.passes(7)
    assert len(said) == 1


def test_a_rank_that_sleeps_again_and_again_at_one_place_is_alive(job):
    for switches in range(100):
        job.nodes["worker1"] = [process(0, HERE, switches=switches)]
        assert job.passes(6) == []


def test_ranks_that_all_use_cpu_time_at_one_place_compute_and_with_an_odd_one_they_wait(job):
    def busy(number: int, spent: float) -> dict[str, Any]:
        return process(number, HERE, "S", cpu_s=spent)

    for spent in range(100):
        job.nodes["worker1"] = [busy(0, spent), busy(1, spent), process(2, HERE, "R")]
        assert job.passes(6) == []
    for others in ([process(3, THERE)], [process(3, HERE)]):
        job.wrote_at = job.now
        job.watch = StallWatch(60.0, job, job, lambda: job.now)  # type: ignore[arg-type]
        said = []
        for spent in range(12):
            job.nodes["worker1"] = [busy(0, spent), busy(1, spent), *others]
            said += job.passes(6)
        assert len(said) == 1


def test_a_node_that_does_not_answer_and_a_job_without_ranks_are_no_evidence(job):
    job.nodes["worker2"] = None  # type: ignore[assignment]
    assert job.passes(300) == []
    job.nodes = {"worker1": []}
    assert job.passes(300) == []


@pytest.mark.parametrize("bad", [{"number": 0}, process(0, [["f"]]), process(0, HERE, state="no state")])
def test_a_report_that_no_starter_sends_is_no_evidence(job, bad):
    job.nodes["worker1"] = [bad]
    assert job.passes(300) == []


def test_with_a_step_only_the_step_counts_and_the_stacks_are_looked_at_once(job):
    for _ in range(10):
        job.advanced_at = job.now
        assert job.passes(50) == []
    assert job.looks == 0
    job.wrote_at = job.now + 20
    [said] = job.passes(20)
    assert said.startswith("stalled: no step for 61 s; rank 0 waits") and job.looks == 1
    assert job.passes(200) == []
    job.advanced_at = job.now
    assert job.passes(1) == [""]


def test_with_a_step_a_node_that_does_not_answer_is_named_after_a_while(job):
    job.advanced_at, job.nodes["worker2"] = job.now, None  # type: ignore[assignment]
    assert job.passes(65) == []
    [said] = job.passes(20)
    assert "worker2: no answer" in said


def test_a_step_while_the_stacks_are_taken_is_a_sign_of_life(job):
    job.advanced_at, job.nodes["worker2"] = job.now, None  # type: ignore[assignment]
    assert job.passes(65) == []
    job.advanced_at = job.now
    assert job.passes(30) == []


def test_what_a_job_calls_its_functions_does_not_act_on_a_terminal(job):
    job.nodes["worker1"] = [process(0, [["\x1b[2J" + "f" * 390, "\u202etrain.py", 7, True]])]
    [said] = job.passes(70)
    assert said.isprintable() and len(said) < 400 and "?[2J" in said


def test_a_sample_is_kept_as_it_came_and_read_back(tmp_path):
    sample = Sample()
    sample.save(str(tmp_path), 0, "nothing was asked")
    assert stall.saved(str(tmp_path)) == []
    sample.take(b'{"asked": ["worker1"], "ended": [], "problem": ""}')
    sample.take(json.dumps({"node": "worker1", "tool": "", "processes": [process(3, HERE)]}).encode())
    for attempt in (2, 10):
        sample.save(str(tmp_path), attempt, "stalled")
    first, second = map(json.loads, stall.saved(str(tmp_path)))
    assert first["occasion"] == "stalled" and first["at"] > 0 and second["processes"][0]["rank"] == "3"
    assert sample.odd_rank() == "3"


def test_a_rank_that_has_ended_is_the_odd_one_and_no_rank_that_waits_for_it():
    sample = Sample()
    sample.take(b'{"asked": ["worker1"], "ended": ["1"], "problem": ""}')
    waiting = [process(0, HERE), process(2, HERE)]
    sample.take(json.dumps({"node": "worker1", "tool": "", "processes": waiting}).encode())
    assert sample.odd_rank() == "1" and sample.words().startswith("rank 1 has ended; ranks 0, 2 wait in")


def test_what_a_job_puts_in_the_place_of_saved_stacks_is_not_followed(tmp_path):
    (tmp_path / "stacks").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "stacks" / "7.jsonl").symlink_to(tmp_path / "secret")
    assert stall.saved(str(tmp_path)) == []


class Gpus:
    """Two nodes with 8 GPUs each; what they are busy with is what a test says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.watch = IdleGpus(10, 600, lambda: self.now)

    def passes(self, seconds: float, *busy: float, gpus: float = 8) -> list[str]:
        said = []
        for _ in range(round(seconds / 2)):
            self.now += 2
            for one in busy:
                self.watch.add(one, gpus)
            found = self.watch.check()
            said += [] if found is None else [found]
        return said


def test_gpus_that_are_less_busy_than_was_said_for_the_whole_time_are_idle_and_may_be_busy_again():
    gpus = Gpus()
    assert gpus.passes(590, 2, 4) == []
    assert gpus.passes(20, 2, 4) == ["stalled: its GPUs were 3 % busy in the last 600 s"]
    assert gpus.passes(900, 2, 4) == []
    assert gpus.passes(100, 90, 90) == [""]


def test_gpus_of_one_node_may_be_idle_and_short_pauses_are_no_idleness():
    gpus = Gpus()
    assert gpus.passes(1500, 0, 40) == []
    for _ in range(20):
        assert gpus.passes(100, 0, 0) == [] and gpus.passes(100, 80, 70) == []


def test_gpus_of_which_nothing_is_known_are_not_idle():
    gpus = Gpus()
    assert gpus.passes(2000) == []
    assert gpus.passes(200, 0, 0) == []
    assert gpus.passes(2000) == []
    assert gpus.passes(2000, 0, gpus=0) == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"stall_s": 5}, "out-of-range"),
        ({"idle_gpu": "10%:5s"}, "out-of-range"),
        ({"idle_gpu": "100%:1h"}, "out-of-range"),
        ({"idle_gpu": "0%:1h"}, "out-of-range"),
        ({"idle_gpu": "1h"}, "out-of-range"),
        ({"idle_gpu": ""}, "out-of-range"),
        ({"on_stall": "stop"}, "conflicting-options"),
        ({"on_stall": "restart", "stall_s": 60}, "conflicting-options"),
        ({"on_stall": "explode", "stall_s": 60}, "out-of-range"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, code):
    with raises_code(code):
        JobSpec(("true",), **options)
