"""Clusters in AWS's weather: a life under each of three seeds, and an organisation's rules, which fail a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from benchmarks import weather
from local_clouds import bad_weather

from conftest import Terminal, a_terminal

pytestmark = pytest.mark.cluster

SEEDS = (1, 2, 3)
GETTING_STARTED = Path(__file__).parents[2] / "docs/getting-started.md"
SPEC = "name: forbidden\ncloud: local\nnodes: 2\ntype: c5.large\nkeep: no\nnode_timeout: 20m\n"


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_terminal(SPEC) as made:
        yield made


def test_the_commands_of_getting_started_bring_weather_and_end_it(terminal):
    _, _, section = GETTING_STARTED.read_text().partition("## In bad weather")
    commands = re.findall(r"^\$ (.+)$", section.partition("\n## ")[0], re.MULTILINE)
    shown = terminal.typed("\n".join([*commands, "phalanx down"]))
    assert "is deleted; nothing of it is left" in shown


def test_clusters_live_through_all_weather_at_once(tmp_path):
    """Three at the same time, because each mostly waits."""
    with ThreadPoolExecutor(len(SEEDS)) as pool:
        trials = list(pool.map(lambda seed: lived(seed, tmp_path), SEEDS))
    assert [trial.problems for trial in trials] == [[]] * len(trials)
    assert all(sum(trial.struck.values()) > 10 for trial in trials)


def lived(seed: int, logs: Path) -> weather.Trial:
    """Return a trial; one during which the machine became much busier proves nothing, and is repeated."""
    for number in range(3):
        trial = weather.run_trial(weather.Trial(number, seed, weather.ALL, speed=10), logs)
        if not trial.void:
            break
    return trial


def test_a_zone_without_capacity_is_named_and_the_next_one_is_tried(terminal):
    file = terminal.directory / "phalanx.yaml"
    file.write_text(f"{SPEC}zones: [us-east-1a, us-east-1b]\n")
    try:
        with bad_weather(terminal, 1, "elsewhere"):
            shown = terminal.phalanx("up").stderr
            terminal.phalanx("down", "--yes")
    finally:
        file.write_text(SPEC)
    assert "sufficient c5.large capacity in the Availability Zone you requested (us-east-1a)" in shown
    assert "nothing of that attempt is left; trying c5.large in us-east-1b" in shown


@pytest.mark.parametrize(
    ("rule", "message", "cause"),
    [
        ("explicit-deny", "with an explicit deny in a service control policy", "a rule of the organisation"),
        (
            "service-linked-role",
            "The default Service-Linked Role for Auto Scaling could not be created",
            "no service-linked",
        ),
        (
            "tag-policy",
            "The tag policy does not allow the specified value for the following tag key: 'phalanx:cluster'",
            "tag policy",
        ),
        ("disk-key", "Client.InternalError: Client error on launch", "key that encrypts the disks"),
    ],
)
def test_an_organisations_rule_is_named_long_before_the_nodes_time_is_up(terminal, rule, message, cause):
    with bad_weather(terminal, 1, rule):
        done = terminal.phalanx("up", check=False, timeout_s=600)
    assert done.returncode != 0
    assert message in done.stderr, done.stderr
    assert "capacity" not in done.stderr
    assert cause in terminal.phalanx("why").stdout
