"""Clusters in AWS's weather: a life in all of it, and an organisation's rules, which fail a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import rules, weather
from local_clouds import bad_weather
from terminals import Terminal, a_terminal
from verdicts import is_gone

pytestmark = pytest.mark.cluster

LOCAL_CLOUD_PAGE = Path(__file__).parents[2] / "docs/local-cloud.md"


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_terminal(rules.SPEC) as made:
        yield made


def test_the_commands_of_the_page_bring_weather_and_end_it(terminal):
    _, _, section = LOCAL_CLOUD_PAGE.read_text().partition("## Bad weather")
    commands = re.findall(r"^\$ (.+)$", section.partition("\n## ")[0], re.MULTILINE)
    shown = terminal.typed("\n".join([*commands, "phalanx down"]))
    assert is_gone(shown)


def test_a_cluster_lives_through_all_weather_at_once(tmp_path):
    """`make soak PART=weather` runs a hundred. One during which the machine became much busier proves nothing."""
    for number in range(3):
        trial = weather.run_trial(weather.Trial(number, 1, weather.ALL, speed=10), tmp_path)
        if not trial.void:
            break
    assert trial.problems == []
    assert sum(trial.struck.values()) > 10


def test_a_zone_without_capacity_is_named_and_the_next_one_is_tried(terminal):
    file = terminal.directory / "phalanx.yaml"
    file.write_text(f"{rules.SPEC}zones: [us-east-1a, us-east-1b]\n")
    try:
        with bad_weather(terminal, 1, "elsewhere"):
            shown = terminal.phalanx("up").stderr
            terminal.phalanx("down", "--yes")
    finally:
        file.write_text(rules.SPEC)
    assert "sufficient c5.large capacity in the Availability Zone you requested (us-east-1a)" in shown
    assert "nothing of that attempt is left; trying c5.large in us-east-1b" in shown


CAUSES = {
    "explicit-deny": "a rule of the organisation",
    "service-linked-role": "no service-linked",
    "tag-policy": "tag policy",
    "disk-key": "key that encrypts the disks",
}


@pytest.mark.parametrize("rule", CAUSES)
def test_an_organisations_rule_is_named_long_before_the_nodes_time_is_up(terminal, rule):
    """`python -m benchmarks rules` measures after how many seconds."""
    with bad_weather(terminal, 1, rule):
        done = terminal.phalanx("up", check=False, timeout_s=600)
    assert done.returncode != 0
    assert rules.NAMED[rule] in done.stderr, done.stderr
    assert "capacity" not in done.stderr
    assert CAUSES[rule] in terminal.phalanx("why").stdout
