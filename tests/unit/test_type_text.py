"""What a plan shows of the types it may use: zones, prices, leases."""

from __future__ import annotations

import json
from dataclasses import replace

from clusters import FACTS, aws_spec, spec

from phalanx.plan import money
from phalanx.plan.plan import Facts, Plan, make_plan, offline_facts
from phalanx.plan.plan_text import as_dict, explain, warnings

HERE = replace(FACTS, cloud="aws")


def plan(first: Facts, *others: Facts, **fields: object) -> Plan:
    return make_plan(aws_spec(**fields), replace(first, others=others))


def test_a_plan_shows_where_each_type_is_offered_and_what_it_costs():
    other = replace(HERE, vcpus=4, zones=("us-east-1d",))
    made = plan(HERE, other, type=["c5.large", "c5.xlarge"], lease_s=7200)
    shown = explain(made)
    assert "offered in        c5.large: us-east-1a, us-east-1b" in shown
    assert "offered in        c5.xlarge: us-east-1d" in shown
    dearer = money.usd_per_hour(aws_spec(type="c5.xlarge"), 4)
    assert f"if there is none  c5.xlarge at about ${dearer:.2f} an hour" in shown
    assert "only us-east-1d offers c5.xlarge: no other zone can replace it if it is full" in warnings(made)
    first, second = json.loads(json.dumps(as_dict(made)["types"]))
    assert (first["type"], first["zones"]) == ("c5.large", ["us-east-1a", "us-east-1b"])
    assert (second["type"], second["zones"], second["vcpus_per_node"]) == ("c5.xlarge", ["us-east-1d"], 4)
    assert (second["cost_usd_per_hour"], second["lease_s"]) == (dearer, 7200)


def test_a_plan_shows_another_lease_of_another_type():
    made = plan(HERE, replace(HERE, gpus=8), type=["c5.large", "p5.48xlarge"])
    assert any(line.endswith("an hour, stopped after 24 h") for line in explain(made))


def test_a_plan_with_one_type_shows_its_zones_only_if_the_cloud_was_asked():
    assert "offered in        us-east-1a, us-east-1b" in explain(plan(HERE))
    assert as_dict(plan(HERE))["types"][0]["zones"] == ["us-east-1a", "us-east-1b"]
    tables = offline_facts(aws_spec())
    assert tables is not None
    made = make_plan(aws_spec(), tables)
    assert not any(line.startswith("offered in") for line in explain(made))
    assert as_dict(made)["types"][0]["zones"] is None
    assert as_dict(make_plan(spec(), FACTS))["types"][0]["zones"] is None
