"""Leases, budgets and stopped clusters on the command line, with a cloud that only records."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_cloud import event

from phalanx.aws.model import Running
from phalanx.cluster.cluster_record import Cluster
from phalanx.plan.money import Use


def test_a_stopped_cluster_is_shown_as_such_and_up_starts_it(phalanx, cloud):
    phalanx("up")
    cloud.running_now = Running(nodes=0, stopped=True, end_s=None)
    assert phalanx("status") == 0
    assert "nodes     none: they are stopped" in phalanx.out
    assert phalanx("ls") == 0
    assert "stopped" in phalanx.out
    assert phalanx("extend") == 6
    assert "`phalanx up` starts them" in phalanx.err
    nodes = tuple(node._replace(instance_id=f"i-{number}") for number, node in enumerate(cloud.roster.nodes, 11))
    cloud.roster_after_start = cloud.roster._replace(generation=2, nodes=nodes)
    assert phalanx("up") == 0
    assert "had stopped its nodes; starting them again" in phalanx.err
    assert "is ready after" in phalanx.out
    assert (cloud.started, cloud.ends) == ([2], [])


def test_status_ls_and_extend_show_when_a_stopped_cluster_is_removed(phalanx, cloud):
    phalanx("up")
    stack = next(iter(cloud.stacks.values()))
    stack.state = replace(stack.state, outputs={**stack.state.outputs, "DownAfter": str(7 * 86400)})
    since = time.time() - 86400
    cloud.running_now = Running(nodes=0, stopped=True, end_s=None, idle_since_s=since)
    assert phalanx("status") == 0
    assert "removal   in 5 d 23 h, at " in phalanx.out or "removal   in 6 d 00 h, at " in phalanx.out
    assert phalanx("status", "--json") == 0
    assert json.loads(phalanx.out)["removal_left_s"] == pytest.approx(6 * 86400, abs=60)
    assert phalanx("ls") == 0
    assert "REMOVAL" in phalanx.out and " d " in phalanx.out
    assert phalanx("extend", "2d") == 0
    assert cloud.kept_until == [pytest.approx(since + 9 * 86400, abs=1)] and cloud.ends == []
    assert "The stack of stopped cluster demo is deleted in " in phalanx.out


def test_extend_counts_from_the_present_end_or_from_now(phalanx, cloud, monkeypatch):
    monkeypatch.setattr("phalanx.cli.status._ask_head", lambda _: {"jobs_running": 0, "jobs_damaged": 0})
    phalanx("up")
    end_s = time.time() + 1000
    cloud.running_now = Running(nodes=2, stopped=False, end_s=end_s)
    assert phalanx("extend", "1h30m") == 0
    assert cloud.ends == [end_s + 5400]
    assert "The lease of cluster demo ends in 1 h 46 min" in phalanx.out
    assert phalanx("status") == 0
    assert "lease     ends in 16 min" in phalanx.out
    cloud.running_now = Running(nodes=2, stopped=False, end_s=None)
    assert phalanx("extend", "--json") == 2, "nodes that run on must not stop by a word that means the opposite"
    assert "add --yes" in phalanx.err and len(cloud.ends) == 1
    assert phalanx("extend", "--json", "--yes") == 0
    assert cloud.ends[1] == pytest.approx(time.time() + 7200, abs=60)


@pytest.mark.parametrize("wrong", ["2", "soon", "0s"])
def test_extend_refuses_what_is_no_time(phalanx, cloud, wrong):
    phalanx("up")
    assert phalanx("extend", wrong) == 2


def test_status_and_ls_show_what_a_cluster_cost_and_what_still_costs(phalanx, cloud, monkeypatch):
    phalanx("up")
    monkeypatch.setattr("phalanx.cli.status._ask_head", lambda _: {"jobs_running": 0, "jobs_damaged": 0})
    assert phalanx("status") == 0
    assert "cost      nothing" in phalanx.out
    stack = next(iter(cloud.stacks.values()))
    stack.state = replace(stack.state, created_s=time.time() - 10 * 3600, parameters={"InstanceType": "c5.large"})
    cloud.name, cloud.use_now = "aws", Use(10.0, 10.0, 1, 1, 100.0)
    record = replace(Cluster.load("demo"), cloud="aws")
    record.save()
    phalanx("status")
    assert "about $2.25 so far (prices of us-east-1, 2026-11); now $0.23 an hour" in phalanx.out
    assert "of which NAT gateway and addresses $0.055 an hour, and the data in EFS $30.00 a month" in phalanx.out
    phalanx("ls")
    assert "$2.25" in phalanx.out
    now = "$0.23 an hour, of which NAT gateway and addresses $0.055 an hour, and the data in EFS $30.00 a month"
    header, row = phalanx.out.splitlines()
    assert header.endswith("COSTS NOW") and row.endswith(now)
    phalanx("ls", "--json")
    (listed,) = json.loads(phalanx.out)
    phalanx("status", "--json")
    assert listed["cost"] == json.loads(phalanx.out)["cost"]
    assert (listed["cost_usd"], listed["cost"]["storage_usd_per_month"]) == (2.25, 30.0)
    stack.state = replace(stack.state, outputs={"RosterTable": "table"})
    names = ("S3Endpoint", "SqsEndpoint", "SnsEndpoint")
    stack.script = [event(n, name, "CREATE_COMPLETE", "AWS::EC2::VPCEndpoint") for n, name in enumerate(names)]
    replace(record, head_address="i-0123456789abcdef0").save()
    phalanx("status")
    assert "of which endpoints $0.020 an hour" in phalanx.out
    stack.state = replace(stack.state, outputs={"RosterTable": "table", "HeadAddress": "54.0.0.1"})
    record.save()
    cloud.running_now = Running(nodes=0, stopped=True, end_s=None)
    phalanx("status")
    assert "now NAT gateway and addresses $0.055 an hour" in phalanx.out
    phalanx("ls")
    assert phalanx.out.rstrip().endswith("NAT gateway and addresses $0.055 an hour, and the data in EFS $30.00 a month")
    parameters = {**stack.state.parameters, "Vpc": "vpc-1"}
    stack.state = replace(stack.state, parameters=parameters)
    phalanx("status")
    assert "now the head's address $0.005 an hour" in phalanx.out


def test_ls_shows_no_cost_of_a_local_cluster_and_of_one_that_is_gone(phalanx, cloud):
    phalanx("up")
    phalanx("ls")
    assert phalanx.out.splitlines()[1].endswith("nothing")
    cloud.stacks.clear()
    phalanx("ls", "--json")
    (listed,) = json.loads(phalanx.out)
    assert (listed["state"], listed["cost"], listed["cost_usd"]) == ("gone", None, None)
    phalanx("ls")
    assert phalanx.out.splitlines()[1].endswith("-")


def test_a_spent_budget_starts_no_nodes(phalanx, cloud):
    (Path("phalanx.yaml")).write_text("name: demo\nnodes: 2\ncloud: aws\nssh_from: 203.0.113.7/32\nbudget: $10\n")
    cloud.name = "aws"
    assert phalanx("up") == 0
    stack = next(iter(cloud.stacks.values()))
    assert stack.state.parameters["LeaseEnd"].endswith("Z")
    parameters = {**stack.state.parameters, "InstanceType": "c5.large"}
    stack.state = replace(stack.state, created_s=time.time(), parameters=parameters)
    cloud.running_now, cloud.use_now = Running(nodes=0, stopped=True, end_s=None), Use(58.5, 59.0, 0, 0, 0.0)
    assert phalanx("up") != 0
    phalanx.refused("budget-too-small", "$9.99")
    assert cloud.started == []


def test_a_stopped_cluster_is_not_scaled(phalanx, cloud):
    phalanx("up")
    cloud.running_now = Running(nodes=0, stopped=True, end_s=None)
    assert phalanx("scale", "4") == 6
    phalanx.refused("no-nodes", "cluster demo", "`phalanx up`")
