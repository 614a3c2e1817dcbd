"""The guard of VPCs' networks: when it loads a ruleset, and when it does not."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from fleet_fakes import until

from localcloud.network.guard import Guard
from localcloud.network.records import Dns, Interface, Network
from localcloud.nodes.packet_filter import CannotFilter


class Runner:
    """Records the rulesets that were loaded; `gate` holds a load back."""

    def __init__(self) -> None:
        self.loaded: list[tuple[str, str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.problem = ""
        self.told: list[Dns] = []

    def resolve(self, vpc_id: str, dns: Dns) -> None:
        self.told.append(dns)

    def filter(self, vpc_id: str, ruleset: str) -> None:
        self.loaded.append((vpc_id, ruleset))
        assert self.gate.wait(120)
        if self.problem:
            raise CannotFilter(self.problem)


class Site:
    """A guarded VPC with a growing number of nodes."""

    def __init__(self) -> None:
        self.runner: Any = Runner()
        self.nodes = 0
        self.guard = Guard(self.runner, self.read)
        self.guard.open("vpc-1")

    def read(self, vpc_id: str) -> Network | None:
        nodes = tuple(Interface(f"10.0.0.{number + 4}", ()) for number in range(self.nodes))
        return Network({}, nodes, ()) if vpc_id == "vpc-1" else None


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_network_is_up_to_date_when_it_has_settled(site: Site):
    site.nodes = 2
    site.guard.settle()
    assert "10.0.0.4, 10.0.0.5" in site.runner.loaded[-1][1]


def test_changes_while_a_ruleset_is_loaded_share_the_next(site: Site):
    site.runner.gate.clear()
    site.guard.changed()
    until(lambda: len(site.runner.loaded) == 1)
    for _ in range(5):
        site.nodes += 1
        site.guard.changed()
    site.runner.gate.set()
    site.guard.settle()
    assert len(site.runner.loaded) == 2


def test_a_node_is_added_to_what_is_loaded_and_all_is_loaded_again_after_a_refusal(site: Site):
    for site.nodes in (2, 3):
        site.guard.settle()
    assert site.runner.loaded[-1][1].splitlines()[0] == "add element inet vpc nodes { 10.0.0.6 }"
    site.runner.problem, site.nodes = "File exists", 4
    for _ in range(2):
        site.guard.settle()
    assert "set nodes {" in site.runner.loaded[-1][1]


def test_what_is_loaded_is_not_loaded_again_and_what_was_refused_is(site: Site):
    site.guard.settle()
    site.guard.settle()
    assert len(site.runner.loaded) == 1
    site.runner.problem, site.nodes = "no nft", 1
    site.guard.settle()
    site.guard.settle()
    assert len(site.runner.loaded) == 3


def test_a_closed_vpc_is_left_alone(site: Site):
    site.guard.settle()
    site.guard.close("vpc-1")
    site.nodes = 1
    site.guard.settle()
    assert len(site.runner.loaded) == 1


def test_the_name_server_knows_a_vpc_s_attributes_also_where_nothing_is_filtered(site: Site):
    site.runner.problem = "no nft"
    for _ in range(2):
        site.guard.settle()
    assert site.runner.told == [Dns()]
    site.guard.close("vpc-1")
    site.guard.open("vpc-1")
    site.guard.settle()
    assert len(site.runner.told) == 2
