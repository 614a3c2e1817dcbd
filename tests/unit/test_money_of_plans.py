"""What a plan says about money: prices, and the limits of a lease, of idleness and of a budget."""

from dataclasses import replace

import pytest
from clusters import FACTS, GPU_FACTS, plan
from error_codes import raises_code

from phalanx.plan import money
from phalanx.plan.money import Limits
from phalanx.plan.plan import make_plan
from phalanx.plan.plan_text import as_dict, describe, explain
from phalanx.spec.spec import ClusterSpec


def spec(**keys) -> ClusterSpec:
    return ClusterSpec(**{"name": "demo", "cloud": "aws", "ssh_from": "203.0.113.7/32", "nodes": 4, **keys})


def test_types_with_gpus_have_limits_unless_the_file_says_otherwise():
    gpus = spec(type="p4d.24xlarge")
    assert money.limits(gpus, 8) == Limits(24 * 3600, 3600)
    assert money.limits(spec(type="p4d.24xlarge", lease_s=0, idle_s=0), 8) == Limits()
    assert money.limits(spec(type="p4d.24xlarge", lease_s=8 * 3600), 8) == Limits(8 * 3600, 3600)


@pytest.mark.parametrize("kind", ["trn1.2xlarge", "inf2.xlarge", "dl1.24xlarge", "g4ad.xlarge", "f2.6xlarge"])
def test_so_have_types_with_other_accelerators(kind):
    assert money.limits(spec(type=kind), 0) == Limits(24 * 3600, 3600)


def test_so_have_many_nodes_of_a_cheap_type():
    assert money.limits(spec(type="c5.large", nodes=200), 0) == Limits()
    assert money.limits(spec(type="c5.large", nodes=300), 0) == Limits(24 * 3600, 3600)


def test_cheap_and_local_clusters_have_none():
    assert money.limits(spec(), 0) == Limits()
    assert money.limits(ClusterSpec(name="demo", nodes=4, type="p4d.24xlarge"), 8) == Limits()


def test_a_budget_is_the_time_that_it_pays_for_at_full_size():
    rate = 4 * 0.085 + 0.045 + 2 * 0.005
    assert money.limits(spec(budget="$10"), 0) == Limits(int(10 / rate * 3600), 0, by_budget=True)


def test_the_shorter_of_lease_and_budget_counts():
    assert money.limits(spec(budget="$1000", lease_s=7200), 0) == Limits(7200, 0)
    assert money.limits(spec(budget="$10", lease_s=10**6), 0).by_budget


def test_a_budget_for_an_unknown_price_is_refused():
    with raises_code("price-unknown", "x9.large"):
        money.limits(spec(type="x9.large", budget="$50"), 0)


def test_a_budget_or_lease_that_ends_before_the_nodes_start_is_refused():
    with raises_code("budget-too-small", "$0.05", "7 min"):
        money.limits(spec(budget="$0.05"), 0)
    with raises_code("lease-too-short", "300 s"):
        money.limits(spec(lease_s=300), 0)


def test_nothing_costs_in_the_local_cloud():
    assert money.usd_per_hour(ClusterSpec(name="demo", nodes=4), 4) == 0.0
    assert money.limits(ClusterSpec(name="demo", nodes=4, budget="$1"), 0) == Limits()


def test_a_plan_says_that_nothing_ends_the_nodes_where_the_file_wants_no_lease():
    def lease(**keys):
        return dict(describe(plan(cloud="aws", ssh_from="203.0.113.7/32", **keys))).get("lease", "")

    assert "no lease" in lease(lease_s=0, nodes=2)
    assert lease(nodes=2) == ""


def test_a_plan_shows_the_cost_until_the_lease_ends_and_where_the_prices_are_from():
    made = plan(cloud="aws", ssh_from="203.0.113.7/32", lease_s=8 * 3600, nodes=4)
    cost = next(line for line in explain(made) if line.startswith("cost"))
    assert "prices of us-east-1, 2026-11" in cost and "$3.16 until the lease ends" in cost
    assert (as_dict(made)["cost_usd_of_lease"], as_dict(made)["lease_s"]) == (3.16, 28800)
    assert any("AWS stops all nodes after 8 h; /efs stays" in line for line in explain(made))


def test_a_plan_says_which_limits_are_defaults():
    lines = explain(plan(GPU_FACTS, cloud="aws", ssh_from="203.0.113.7/32", type="p5.48xlarge"))
    assert any("after 24 h (the default for expensive nodes)" in line for line in lines)
    assert any("after 1 h without programs of users (the default" in line for line in lines)


@pytest.mark.parametrize("kind", ["trn1.2xlarge", "g4ad.xlarge"])
def test_accelerators_without_a_driver_are_refused_unless_the_file_names_an_image(kind):
    facts = replace(FACTS, cloud="aws")
    with raises_code("no-accelerator-driver", kind, "/aws/service/neuron/dlami"):
        make_plan(spec(type=kind), facts)
    assert make_plan(spec(type=kind, image="/aws/service/neuron/dlami/base/ubuntu-24.04/latest/image_id"), facts)
