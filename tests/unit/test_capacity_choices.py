"""`capacity`: which machines are spot or reserved, what that takes of the quotas, and what is refused."""

import json
from dataclasses import replace

import pytest
from clusters import FACTS, aws_spec
from error_codes import raises_code
from plans import resources

from phalanx.errors import SpecError
from phalanx.plan import quotas
from phalanx.plan.capacity import Reservation
from phalanx.plan.plan import HeadFacts, Plan, make_plan
from phalanx.plan.plan_text import explain, warnings
from phalanx.template import synthesize

ID = "cr-0123abcd"
HELD = Reservation(ID, False, "active", "c5.large", "us-east-1b", 4)
BLOCK = replace(HELD, is_block=True, ends="2026-11-23 11:30 UTC")
HEAD = {"type": "m5.large"}


def made(reservation: Reservation | None = None, **fields) -> Plan:
    facts = replace(FACTS, cloud="aws", reservation=reservation, head=HeadFacts(2, 8, "x86_64"))
    return make_plan(aws_spec(**fields), facts)


def markets(plan: Plan) -> list[str | None]:
    """Return the market of the head and of the workers."""
    document = json.loads(synthesize(plan))
    data = [one["LaunchTemplateData"] for one in resources(document, "AWS::EC2::LaunchTemplate").values()]
    return [one.get("InstanceMarketOptions", {}).get("MarketType") for one in data]


def reserved(plan: Plan) -> list[str]:
    """Return the groups that launch in the reservation alone."""
    groups = resources(json.loads(synthesize(plan)), "AWS::AutoScaling::AutoScalingGroup")
    wanted = {
        "CapacityReservationPreference": "capacity-reservations-only",
        "CapacityReservationTarget": {"CapacityReservationIds": [ID]},
    }
    return sorted(name for name, group in groups.items() if group.get("CapacityReservationSpecification") == wanted)


def test_spot_workers_have_a_head_on_demand():
    plan = made(capacity="spot")
    assert markets(plan) == [None, "spot"]
    assert "bought as         spot instances as workers, the head on demand" in explain(plan)
    assert any("two minutes' notice" in warning for warning in warnings(plan))
    assert markets(made(capacity="on-demand")) == [None, None]


@pytest.mark.parametrize(
    ("capacity", "head", "expected"),
    [
        (None, None, {"Running On-Demand Standard instances": 8}),
        ("spot", None, {"Running On-Demand Standard instances": 2, "All Standard Spot Instance Requests": 6}),
        (ID, None, {}),
        (ID, HEAD, {"Running On-Demand Standard instances": 2}),
    ],
)
def test_each_way_has_its_quota_and_reserved_instances_have_none(capacity, head, expected):
    found = quotas.of(aws_spec(nodes=4, capacity=capacity, head=head), 2, 2)
    assert {one.name: one.needed for one in found if one.unit == "vCPU"} == expected


def test_nodes_that_train_are_in_the_reservation():
    plan = made(HELD, capacity=ID)
    assert reserved(plan) == ["HeadGroup", "WorkersGroup"]
    assert (plan.zone, markets(plan)) == ("us-east-1b", [None, None])
    assert reserved(made(HELD, capacity=ID, head=HEAD)) == ["WorkersGroup"]
    assert reserved(made(capacity="spot")) == []


def test_a_capacity_block_has_a_market_of_its_own():
    plan = made(BLOCK, capacity=ID, head=HEAD)
    assert markets(plan) == [None, "capacity-block"]
    assert any("Capacity Block cr-0123abcd: 4 instances free, until 2026-11-23" in line for line in explain(plan))


@pytest.mark.parametrize(
    ("reservation", "fields", "message"),
    [
        (None, {}, "only EC2 knows a reservation"),
        (replace(BLOCK, state="scheduled", begins="Monday"), {}, "cr-0123abcd is scheduled; it begins Monday"),
        (replace(HELD, instance_type="c5.xlarge"), {}, r"holds c5\.xlarge, and type is c5\.large"),
        (HELD, {"zones": ["us-east-1a"]}, "is in us-east-1b, and zones has us-east-1a"),
        (replace(HELD, free=1), {}, "has 1 instance free, and at least 2 are needed"),
        (HELD, {"placement": "cluster"}, "was not made in a placement group of this cluster"),
        (BLOCK, {"placement": "mine"}, "is a Capacity Block, which no placement group can be used with"),
    ],
)
def test_what_a_reservation_can_t_hold_is_refused(reservation, fields, message):
    with pytest.raises(SpecError, match=message):
        made(reservation, capacity=ID, **fields)


@pytest.mark.parametrize(("free", "hint"), [(1, "`nodes: 1` with `min: 1`"), (0, "Wait until one of its instances")])
def test_a_reservation_that_is_too_small_names_the_nearest_cluster_that_it_holds(free, hint):
    with pytest.raises(SpecError) as refusal:
        made(replace(HELD, free=free), capacity=ID)
    assert hint in refusal.value.hint


def test_a_named_group_and_a_reservation_go_together():
    assert made(HELD, capacity=ID, placement="mine").spec.placement == "mine"


def test_spot_without_workers_is_refused():
    with raises_code("one-node", "capacity:"):
        made(nodes=1, min=1, capacity="spot")


def test_a_key_of_the_account_s_own_for_disks_is_named_with_who_must_be_let_in():
    facts = replace(FACTS, cloud="aws", disk_key="arn:aws:kms:us-east-1:123456789012:key/1")
    (said,) = (one for one in warnings(make_plan(aws_spec(), facts)) if "encrypts disks" in one)
    assert "key/1" in said and "AWSServiceRoleForAutoScaling" in said
