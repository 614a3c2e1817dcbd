"""Clusters in AWS's weather: a life under each of three seeds, and an organisation's rules, which fail a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from benchmarks import weather
from local_clouds import bad_weather

from conftest import Terminal, a_terminal

pytestmark = pytest.mark.cluster

SPEC = "name: forbidden\ncloud: local\nnodes: 2\ntype: c5.large\nkeep: no\nnode_timeout: 60s\n"


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_terminal(SPEC) as made:
        yield made


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_cluster_lives_through_all_weather_at_once(seed, tmp_path):
    trial = weather.Trial(0, seed, weather.ALL, speed=10)
    weather.run_trial(trial, tmp_path)
    assert trial.problems == []
    assert sum(trial.struck.values()) > 10


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("explicit-deny", "with an explicit deny in a service control policy"),
        ("service-linked-role", "The default Service-Linked Role for Auto Scaling could not be created"),
        (
            "tag-policy",
            "The tag policy does not allow the specified value for the following tag key: 'phalanx:cluster'",
        ),
        ("disk-key", "Client.InternalError: Client error on launch"),
    ],
)
def test_an_organisations_rule_is_named_within_60_s(terminal, rule, message):
    with bad_weather(terminal, 1, rule):
        began = time.monotonic()
        done = terminal.phalanx("up", check=False)
        took_s = time.monotonic() - began
    assert done.returncode != 0
    assert message in done.stderr, done.stderr
    assert "capacity" not in done.stderr
    assert took_s < 60
