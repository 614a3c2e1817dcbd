"""The weather's soak: which lives it plans, and what it says of a cluster whose shared directory is away."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from benchmarks.absence import SILENT, Absence
from benchmarks.drill.local_cluster import LocalCluster
from benchmarks.weather import ALL, plan

NODES = [{"name": name, "instance_id": f"i-{name}", "state": "ready"} for name in ("head", "worker2")]


def test_every_second_life_has_all_kinds_unless_each_has_one_alone():
    kinds = ("stalls", "storage")
    assert [trial.kind for trial in plan(5, 1, 10, kinds)] == [ALL, "stalls", ALL, "storage", ALL]
    assert [trial.kind for trial in plan(3, 1, 10, kinds, is_alone=True)] == ["stalls", "storage", "stalls"]


def test_a_share_of_the_lives_in_all_weather_has_gpus():
    lives = plan(200, 1, 10, ("stalls",))
    assert 15 < sum(trial.has_gpus for trial in lives if trial.kind == ALL) < 40
    assert not any(trial.has_gpus for trial in lives if trial.kind != ALL)


class Away(LocalCluster):
    """A cluster whose commands say this while its directory is away; it has no processes."""

    def __init__(self, root: Path, said: dict[str, str]) -> None:
        super().__init__(root, "")
        self._said = said

    def phalanx(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(arguments, 0, self._said[arguments[0]], "")


SILENT_NODE = json.dumps([NODES[0], {**NODES[1], "state": "silent"}])


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({}, []),
        ({"status": "jobs      2 running"}, ["`status` ended with 0: jobs      2 running"]),
        ({"nodes": SILENT_NODE}, ["the ready nodes are [('head', 'i-head')], and were "]),
        ({"ssh": ""}, ["`ssh` ended with 0: "]),
    ],
)
def test_what_stops_while_the_shared_directory_is_away_is_a_problem(said, wrong, tmp_path):
    right = {"status": f"jobs      unknown: {SILENT}", "nodes": json.dumps(NODES), "ssh": "ip-10-0-0-5\n"}
    watching = Absence(Away(tmp_path, right | said), 1, lambda: True)
    watching.nodes = [(node["name"], node["instance_id"]) for node in NODES]
    found = list(watching.look())
    assert len(found) == len(wrong)
    assert all(one.startswith(start) for one, start in zip(found, wrong, strict=True))
    assert {*watching.seen.slowest_s} == {"status", "nodes", "ssh"}


def test_an_absence_before_jobs_ran_proves_nothing_and_is_no_problem(tmp_path):
    watching = Absence(Away(tmp_path, {}), 1, lambda: True)
    assert (watching.watch(), watching.seen.looks) == ("", 0)
