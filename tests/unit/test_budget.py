"""A budget after `up`: more nodes bring the end forward, and an end that it does not pay for is reported."""

from __future__ import annotations

import calendar
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from error_codes import raises_code

from phalanx.aws.model import Running
from phalanx.cli.console import moment
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.scaling import Scaling
from phalanx.connection import attached
from phalanx.errors import CloudError
from phalanx.plan.money import Use

HOUR_S = 3600
# c5.large, and the network of a new VPC: the table's prices.
NODE, NETWORK = 0.085, 0.055


@pytest.fixture
def budget(phalanx, cloud):
    """Bring two nodes with a budget of $10 up, which has just begun; the lease ends in 1,000 hours."""
    text = "name: demo\nnodes: 2\ncloud: aws\nssh_from: 203.0.113.7/32\nbudget: $10\n"
    Path("phalanx.yaml").write_text(text)
    cloud.name = "aws"
    assert phalanx("up") == 0
    stack = next(iter(cloud.stacks.values()))
    parameters = {**stack.state.parameters, "InstanceType": "c5.large"}
    stack.state = replace(stack.state, created_s=time.time(), parameters=parameters)
    cloud.use_now = Use(0.0, 0.0, 1, 1, 0.0)
    cloud.running_now = Running(nodes=2, stopped=False, end_s=time.time() + 1000 * HOUR_S)
    return cloud


def paid_s(nodes: int, usd: float = 10.0) -> float:
    return usd / (nodes * NODE + NETWORK) * HOUR_S


def seconds(shown: str) -> float:
    return calendar.timegm(time.strptime(shown, "%Y-%m-%d %H:%M UTC"))


def first_step(nodes: int) -> str | None:
    """Return what `scale` says about the budget, before it requests anything."""
    return next(Scaling(attached(Cluster.load("demo")), nodes)._hold_budget(), None)


def test_more_nodes_bring_the_end_to_where_the_budget_is_spent(budget):
    said = first_step(4)
    (end_s,) = budget.ends
    assert end_s == pytest.approx(time.time() + paid_s(4), abs=60)
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(end_s))
    assert said == f"the budget of $10 pays 4 nodes until {when}"


def test_what_is_spent_already_counts(budget):
    budget.use_now = Use(30.0, 30.0, 1, 1, 0.0)
    first_step(4)
    assert budget.ends == [pytest.approx(time.time() + paid_s(4, 10 - 60 * NODE), abs=60)]


def test_a_cluster_whose_end_was_taken_away_gets_that_of_the_budget(budget):
    budget.running_now = Running(nodes=2, stopped=False, end_s=None)
    first_step(3)
    assert budget.ends == [pytest.approx(time.time() + paid_s(3), abs=60)]


def test_a_lease_that_ends_sooner_stays(budget):
    budget.running_now = Running(nodes=2, stopped=False, end_s=time.time() + HOUR_S)
    assert first_step(4) is None
    assert budget.ends == []


@pytest.mark.parametrize("nodes", [1, 2])
def test_no_more_nodes_than_before_leave_the_end_alone(budget, nodes):
    assert first_step(nodes) is None
    assert budget.ends == []


def test_a_cluster_without_a_budget_has_no_end_of_one(budget):
    record = Cluster.load("demo")
    replace(record, spec={**record.spec, "budget": None}).save()
    assert first_step(4) is None
    assert budget.ends == []


def test_an_extended_lease_ends_where_the_budget_does(budget):
    """Not at the file's lease, which `phalanx extend` has moved."""
    record = Cluster.load("demo")
    replace(record, spec={**record.spec, "lease_s": HOUR_S}).save()
    first_step(4)
    assert budget.ends == [pytest.approx(time.time() + paid_s(4), abs=60)]


def test_a_budget_of_a_local_cluster_ends_nothing(budget):
    budget.name = "local"
    record = Cluster.load("demo")
    replace(record, cloud="local", spec={**record.spec, "cloud": "local"}).save()
    assert first_step(4) is None
    assert budget.ends == []


def test_a_spent_budget_allows_no_more_nodes(budget):
    budget.use_now = Use(58.5, 59.0, 1, 1, 0.0)
    with raises_code("budget-too-small", "$10", "$9.99"):
        first_step(4)
    assert budget.ends == []


def test_a_stack_that_is_gone_leaves_the_end_alone(budget):
    scaling = Scaling(attached(Cluster.load("demo")), 4)
    budget.running_now = None
    assert scaling.end_of_budget() is None
    budget.stacks.clear()
    assert scaling.end_of_budget() is None


def test_extend_says_that_the_budget_does_not_pay_until_then(phalanx, budget):
    assert phalanx("extend", "2h", "--yes") == 0
    (end_s,) = budget.ends
    assert f"at {moment(end_s)}." in phalanx.out
    said = re.fullmatch(
        r"warning: the budget of \$10 pays 2 nodes until (.*): nothing stops them then.*\n", phalanx.err
    )
    assert said and seconds(said[1]) == pytest.approx(time.time() + paid_s(2), abs=120)
    assert phalanx("extend", "2h", "--yes", "--json") == 0
    assert seconds(json.loads(phalanx.out)["budget_pays_until"]) == pytest.approx(time.time() + paid_s(2), abs=120)


def test_extend_is_silent_where_the_budget_pays(phalanx, budget):
    budget.running_now = Running(nodes=2, stopped=False, end_s=time.time() + HOUR_S)
    assert phalanx("extend", "1h", "--yes") == 0
    assert "warning" not in phalanx.err
    record = Cluster.load("demo")
    replace(record, spec={**record.spec, "budget": None}).save()
    assert phalanx("extend", "1000h", "--yes", "--json") == 0
    assert "warning" not in phalanx.err
    assert json.loads(phalanx.out)["budget_pays_until"] is None


def test_extend_names_a_spent_budget(phalanx, budget):
    budget.use_now = Use(60.0, 59.0, 1, 1, 0.0)
    assert phalanx("extend", "1h", "--yes") == 0
    assert "warning: the budget of $10 is spent, and the nodes go on until the lease ends" in phalanx.err


def test_extend_moves_the_end_even_if_the_cost_is_not_known(phalanx, budget, monkeypatch):
    def refused(*_):
        raise CloudError("these AWS credentials may not call autoscaling:DescribeScalingActivities")

    monkeypatch.setattr(budget, "use", refused)
    assert phalanx("extend", "1h", "--yes") == 0
    assert len(budget.ends) == 1
    assert "warning: whether the budget of $10 pays until then is not known: these AWS credentials" in phalanx.err
