"""Drills: which scenarios a seed brings, and what the command shows of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from benchmarks import measure
from benchmarks.drill import __main__ as soak
from benchmarks.drill import life, strikes, trial
from benchmarks.drill.faults import FAULTS, possible
from benchmarks.drill.life import Life
from benchmarks.drill.local_cluster import LocalCluster, started
from benchmarks.drill.scenarios import HEAD, WORKER, Scenario, plan
from benchmarks.drill.trial import Result
from error_codes import raises_code

from phalanx.local import endpoint


def test_a_seed_brings_the_same_scenarios_whatever_their_number():
    assert plan(9, 7, possible()) == plan(200, 7, possible())[:9]
    assert plan(9, 7, possible()) != plan(9, 8, possible())


def test_each_fault_comes_in_each_of_its_steps_before_one_comes_twice():
    everything = plan(len(possible()), 1, possible())
    assert sorted((one.fault, one.step) for one in everything) == sorted(possible())
    assert {one.victim for one in everything} == {HEAD, WORKER}
    assert {one.weather for one in everything} == {True, False}


def test_a_step_that_can_t_succeed_has_a_reason_to_name():
    assert [name for name, fault in FAULTS.items() if not set(fault.fatal) <= set(fault.names)] == []


def test_the_scenarios_are_listed_by_their_numbers(monkeypatch, capsys):
    assert drill(monkeypatch, "--list", "--seed", "7", "--only", "3", "--json") == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert Scenario(**shown) == plan(4, 7, possible())[3]


@pytest.mark.parametrize(("problems", "code"), [([], 0), (["run: lost"], 1)])
def test_a_drill_that_failed_is_shown_and_decides_the_exit_code(monkeypatch, capsys, problems, code):
    monkeypatch.setattr(trial, "run", lambda scenario, *_: Result(scenario, problems=problems))
    assert drill(monkeypatch, "--seed", "7", "--only", "0", "--only", "1") == code
    shown = capsys.readouterr().err
    assert shown.count(problems[0] if problems else "ready again, and gone after `down`") == 2
    assert f"{0 if problems else 2} of 2 scenarios of seed 7" in shown


def test_a_soak_of_drills_records_each_and_continues_where_it_ended(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setattr(soak, "machine", lambda: {"commit": "0" * 40, "cores": 2})
    ran: list[int] = []
    monkeypatch.setattr(trial, "run", lambda scenario, *_: ran.append(scenario.number) or Result(scenario))
    assert drill(monkeypatch, "--seed", "7", "--count", "2") == 0
    assert drill(monkeypatch, "--seed", "7", "--count", "3", "--record", str(next(tmp_path.glob("*.jsonl")))) == 0
    assert ran == [0, 1, 2]
    assert "3 drills of seed 7" in next(tmp_path.glob("*.txt")).read_text()


def drill(monkeypatch, *arguments: str) -> int:
    """Run `python -m benchmarks.drill`, and return its exit code."""
    monkeypatch.setattr("sys.argv", ["drill", *arguments])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    try:
        soak.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_a_machine_that_became_busy_proves_nothing():
    made = Result(plan(1, 1, possible())[0], problems=["late"], void="the machine had 9 tasks for each CPU")
    assert not made.failed
    assert made.verdict.startswith("void: the machine had 9")


def test_the_api_of_a_drill_asks_no_other_local_cloud_for_its_weather(tmp_path, monkeypatch):
    cluster, asked = LocalCluster(tmp_path, "name: demo"), []
    monkeypatch.setattr(endpoint, "recorded", lambda _directory: "that of the drill")
    monkeypatch.setattr(
        endpoint, "_request", lambda there, *_: (asked.append(there), (200, {"weather": {"seed": 1}}))[1]
    )
    cluster.api().attempts()
    assert asked == ["that of the drill"]


def test_a_process_that_got_the_number_of_one_that_ended_is_not_left(tmp_path, monkeypatch):
    """Machines reuse them within minutes."""
    monkeypatch.setattr(life, "_GONE_WITHIN_S", 0)
    made = life.Life(LocalCluster(tmp_path, "name: demo"), 1, 1, 1)
    assert made.left({os.getpid(): started(os.getpid())}) == f"processes are left: [{os.getpid()}]"
    assert made.left({os.getpid(): "1"}) == ""


def test_a_fault_that_could_not_be_taken_back_is_told():
    """Else the drill blames the cluster for it."""

    class Full:
        def phalanx(self, *arguments: str) -> subprocess.CompletedProcess[str]:
            text = "No space left on device"
            return subprocess.CompletedProcess(arguments, 1 if "rm -rf /var/full" in arguments else 0, text, "")

    struck = strikes.fill_disk(Full(), plan(1, 1, possible())[0])  # pyright: ignore[reportArgumentType]
    with raises_code("failed", "rm -rf /var/full`", "No space left"):
        struck.lift()


class Answering(LocalCluster):
    """A cluster with this weather whose `run` ends with each of these errors, and then works."""

    def __init__(self, root: Path, weather: str, errors: list[str]) -> None:
        super().__init__(root, "")
        self._weather, self._errors = weather, errors

    def phalanx(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        error = self._errors.pop(0) if self._errors else ""
        return subprocess.CompletedProcess(arguments, 7 * bool(error), "", error)

    def log(self) -> str:
        return f"1.0 weather: {self._weather}: it struck\n"


@pytest.mark.parametrize(
    ("weather", "error", "is_over"),
    [
        ("storage", "error: the shared directory /efs does not answer", False),
        ("stalls", "job 261121-095500-abcdef failed: deeplearning-worker2 was lost", False),
        ("stalls", "error: the shared directory /efs does not answer", True),
        ("storage", "job 261121-095500-abcdef failed: deeplearning-worker2 was lost", True),
        ("metadata", "error: the shared directory /efs does not answer", True),
    ],
)
def test_a_life_waits_only_for_weather_that_passes(weather, error, is_over, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _s: None)
    wrong = Life(Answering(tmp_path, weather, [error]), 2, deadline_s=60, speed=10).run()
    assert bool(wrong) == is_over
