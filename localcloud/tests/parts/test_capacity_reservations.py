"""Capacity Reservations and Capacity Blocks of the local cloud, through EC2's API, with a runner that only records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import Cloud, Group, cloud, until
from instances import described, run, state

from localcloud.daemon import faults
from localcloud.ec2 import fleet, reserved

MINUTE = 60.0
GPUS = "p4d.24xlarge"
ONLY = "capacity-reservations-only"


@pytest.fixture
def local(tmp_path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        yield made


def reserve(local: Cloud, count: int = 1, **fields) -> str:
    """Make a reservation of c5.large in us-east-1a that only launches with its id use; return its id."""
    given = {"InstanceType": "c5.large", "InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a"}
    wanted = {**given, "InstanceCount": count, "InstanceMatchCriteria": "targeted", **fields}
    made = local.client("ec2").create_capacity_reservation(**wanted)
    return made["CapacityReservation"]["CapacityReservationId"]


def buy(local: Cloud, count: int = 1, starts_in: float = 0, lasts: float = 60 * MINUTE) -> str:
    """Buy a Capacity Block in the first zone that has one; return its id."""
    api, begins = local.client("ec2"), local.clock.now() + timedelta(seconds=starts_in)
    offer, *_ = api.describe_capacity_block_offerings(
        InstanceType=GPUS,
        InstanceCount=count,
        CapacityDurationHours=24,
        StartDateRange=begins,
        EndDateRange=begins + timedelta(seconds=lasts),
    )["CapacityBlockOfferings"]
    bought = api.purchase_capacity_block(
        CapacityBlockOfferingId=offer["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )
    return bought["CapacityReservation"]["CapacityReservationId"]


def shown(local: Cloud, reservation: str) -> dict:
    answer = local.client("ec2").describe_capacity_reservations(CapacityReservationIds=[reservation])
    return answer["CapacityReservations"][0]


def into(reservation: str, market: str = "") -> dict:
    target = {"CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": reservation}}}
    return {**target, "InstanceMarketOptions": {"MarketType": market}} if market else target


def end(local: Cloud, instance_id: str) -> None:
    local.client("ec2").terminate_instances(InstanceIds=[instance_id])
    until(lambda: state(local, instance_id) == "terminated")


def zone_of(local: Cloud, reservation: str) -> str:
    return local.network((shown(local, reservation)["AvailabilityZone"],))[1][0]


def test_a_launch_takes_a_place_and_its_end_gives_it_back(local):
    held = reserve(local)
    _, (subnet,) = local.network()
    made = run(local, subnet, **into(held))
    assert described(local, made["InstanceId"])["CapacityReservationId"] == held
    assert (shown(local, held)["TotalInstanceCount"], shown(local, held)["AvailableInstanceCount"]) == (1, 0)
    with pytest.raises(ClientError, match=r"ReservationCapacityExceeded.*sufficient compatible and available capacity"):
        run(local, subnet, **into(held))
    end(local, made["InstanceId"])
    until(lambda: shown(local, held)["AvailableInstanceCount"] == 1)


def test_a_launch_template_names_a_reservation(local):
    held = reserve(local)
    _, (subnet,) = local.network()
    template = {"LaunchTemplateId": local.template(**into(held))}
    local.client("ec2").run_instances(LaunchTemplate=template, SubnetId=subnet, MinCount=1, MaxCount=1)
    assert shown(local, held)["AvailableInstanceCount"] == 0


def test_an_open_reservation_is_used_unless_the_launch_declines(local):
    held = reserve(local, InstanceMatchCriteria="open")
    _, (subnet,) = local.network()
    declined = run(local, subnet, CapacityReservationSpecification={"CapacityReservationPreference": "none"})
    assert "CapacityReservationId" not in described(local, declined["InstanceId"])
    taken, beyond = run(local, subnet), run(local, subnet)
    assert described(local, taken["InstanceId"])["CapacityReservationId"] == held
    assert "CapacityReservationId" not in described(local, beyond["InstanceId"])
    only = {"CapacityReservationSpecification": {"CapacityReservationPreference": ONLY}}
    with pytest.raises(ClientError, match="ReservationCapacityExceeded"):
        run(local, subnet, **only)


def test_reserved_capacity_is_kept_from_other_launches_and_counts_in_the_quota_once(local):
    faults.apply(local.context, {"capacity": {"c5.large": 2}, "vcpu_limit": 4})
    held = reserve(local)
    _, (subnet,) = local.network()
    run(local, subnet)
    with pytest.raises(ClientError, match="VcpuLimitExceeded"):
        run(local, subnet)
    run(local, subnet, **into(held))
    faults.apply(local.context, {"vcpu_limit": None})
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        reserve(local)


def test_a_cancelled_reservation_frees_what_nobody_uses_and_its_instances_run_on(local):
    faults.apply(local.context, {"capacity": {"c5.large": 2}})
    held = reserve(local, 2)
    _, (subnet,) = local.network()
    inside = run(local, subnet, **into(held))["InstanceId"]
    local.client("ec2").cancel_capacity_reservation(CapacityReservationId=held)
    assert (shown(local, held)["State"], shown(local, held)["AvailableInstanceCount"]) == ("cancelled", 0)
    assert "CapacityReservationId" not in described(local, inside)
    run(local, subnet)
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        run(local, subnet)
    end(local, inside)
    run(local, subnet)


def test_a_reservation_ends_at_its_end_date(local):
    ends = local.clock.now() + timedelta(minutes=5)
    held = reserve(local, EndDateType="limited", EndDate=ends)
    assert (shown(local, held)["State"], shown(local, held)["EndDate"]) == ("active", ends)
    local.clock.advance(5 * MINUTE)
    assert shown(local, held)["State"] == "expired"
    _, (subnet,) = local.network()
    with pytest.raises(ClientError, match="ReservationCapacityExceeded"):
        run(local, subnet, **into(held))


def ends_before(local: Cloud, monkeypatch, module: object, step: str) -> str:
    """Reserve one c5.large, the only one; the reservation ends just before this step, the first time. Return its id."""
    faults.apply(local.context, {"capacity": {"c5.large": 1}})
    held = reserve(local, EndDateType="limited", EndDate=local.clock.now() + timedelta(minutes=5))
    original = getattr(module, step)

    def late(*args, **kwargs):
        monkeypatch.setattr(module, step, original)
        local.clock.advance(5 * MINUTE)
        return original(*args, **kwargs)

    monkeypatch.setattr(module, step, late)
    return held


def has_room(local: Cloud, subnet: str) -> bool:
    """Launch one instance; return whether there was capacity: an instance's place is free just after its end."""
    with suppress(ClientError):
        return bool(run(local, subnet))
    return False


@pytest.mark.parametrize(("module", "step"), [(fleet, "_moto_launch"), (reserved, "leave")], ids=["launch", "end"])
def test_a_reservation_that_ends_during_a_launch_or_an_end_frees_its_place_once(local, monkeypatch, module, step):
    held = ends_before(local, monkeypatch, module, step)
    _, (subnet,) = local.network()
    made = run(local, subnet, **into(held))["InstanceId"]
    is_inside = "CapacityReservationId" in described(local, made)
    end(local, made)
    until(lambda: has_room(local, subnet), timeout_s=10)
    assert is_inside == (module is reserved)
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        run(local, subnet)


def test_a_reservation_that_ends_just_before_a_place_is_taken_has_none(local, monkeypatch):
    held = ends_before(local, monkeypatch, reserved, "take")
    _, (subnet,) = local.network()
    with pytest.raises(ClientError, match="ReservationCapacityExceeded"):
        run(local, subnet, **into(held))
    run(local, subnet)


@pytest.mark.parametrize(
    ("zone", "kind"), [("us-east-1b", "c5.large"), ("us-east-1a", "m5.large")], ids=["zone", "type"]
)
def test_a_launch_that_does_not_match_is_refused(local, zone, kind):
    held = reserve(local)
    _, (subnet,) = local.network((zone,))
    with pytest.raises(ClientError, match="ReservationCapacityExceeded"):
        run(local, subnet, InstanceType=kind, **into(held))


def test_an_unknown_reservation_is_refused_by_name(local):
    _, (subnet,) = local.network()
    unknown = "cr-0123456789abcdef0"
    for call in (lambda: run(local, subnet, **into(unknown)), lambda: shown(local, unknown)):
        with pytest.raises(ClientError, match=rf"InvalidCapacityReservationId\.NotFound.*'{unknown}'"):
            call()


def test_a_group_launches_in_its_reservation_alone_or_first(local):
    held = reserve(local)
    target = {"CapacityReservationTarget": {"CapacityReservationIds": [held]}}
    spec = {"CapacityReservationPreference": ONLY, **target}
    group = Group(local, CapacityReservationSpecification=spec)
    assert group.shown()["CapacityReservationSpecification"] == spec
    group.want(2)
    until(group.failed)
    until(lambda: len(group.in_service()) == 1)
    assert "does not have sufficient compatible and available capacity" in group.failed()[0]["StatusMessage"]
    first = {"CapacityReservationPreference": "capacity-reservations-first", **target}
    Group(local, CapacityReservationSpecification=first, MinSize=1).reaches(1)


def test_a_capacity_block_has_a_market_of_its_own(local):
    block = buy(local)
    assert (shown(local, block)["State"], shown(local, block)["ReservationType"]) == ("active", "capacity-block")
    subnet = zone_of(local, block)
    for market in ("", "spot"):
        with pytest.raises(ClientError, match=r"InvalidParameterValue.*market type \(purchasing\) option is not valid"):
            run(local, subnet, InstanceType=GPUS, **into(block, market))
    made = run(local, subnet, InstanceType=GPUS, **into(block, "capacity-block"))["InstanceId"]
    assert described(local, made)["InstanceLifecycle"] == "capacity-block"
    with pytest.raises(ClientError, match=r"InvalidParameterValue.*market type"):
        run(local, local.network()[1][0], **into(reserve(local), "capacity-block"))


def test_a_block_that_has_not_begun_takes_no_launch(local):
    block = buy(local, starts_in=10 * MINUTE)
    subnet = zone_of(local, block)
    assert shown(local, block)["State"] == "scheduled"
    with pytest.raises(ClientError, match=r"InvalidCapacityReservationState\.PendingActivation"):
        run(local, subnet, InstanceType=GPUS, **into(block, "capacity-block"))
    local.clock.advance(10 * MINUTE)
    run(local, subnet, InstanceType=GPUS, **into(block, "capacity-block"))


def test_a_block_is_cleared_half_an_hour_before_it_ends(local):
    block = buy(local, lasts=60 * MINUTE)
    subnet = zone_of(local, block)
    made = run(local, subnet, InstanceType=GPUS, **into(block, "capacity-block"))["InstanceId"]
    until(lambda: state(local, made) == "running")
    local.clock.advance(30 * MINUTE - 1)
    assert state(local, made) == "running"
    local.clock.advance(1)
    until(lambda: state(local, made) == "terminated")
    assert shown(local, block)["State"] == "active"
    with pytest.raises(ClientError, match="ReservationCapacityExceeded"):
        run(local, subnet, InstanceType=GPUS, **into(block, "capacity-block"))
    local.clock.advance(30 * MINUTE)
    assert shown(local, block)["State"] == "expired"


def test_a_block_is_cleared_at_once_on_request(local):
    block = buy(local)
    made = run(local, zone_of(local, block), InstanceType=GPUS, **into(block, "capacity-block"))["InstanceId"]
    faults.apply(local.context, {"clear_block": {"reservation_id": block}})
    until(lambda: state(local, made) == "terminated")
    with pytest.raises(faults.FaultError, match="is no Capacity Block"):
        faults.apply(local.context, {"clear_block": {"reservation_id": reserve(local)}})


def test_blocks_exist_for_some_types_and_for_whole_days(local):
    asked = {"InstanceCount": 1, "CapacityDurationHours": 24}
    api = local.client("ec2")
    assert api.describe_capacity_block_offerings(InstanceType="c5.large", **asked)["CapacityBlockOfferings"] == []
    offers = api.describe_capacity_block_offerings(InstanceType=GPUS, **asked)["CapacityBlockOfferings"]
    offer, *others = offers
    assert len({one["AvailabilityZone"] for one in offers}) == 1 + len(others) == 4
    assert (offer["EndDate"].hour, offer["EndDate"].minute) == (11, 30)
    assert timedelta(0) < offer["EndDate"] - offer["StartDate"] - timedelta(days=1) < timedelta(days=1)
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        api.describe_capacity_block_offerings(InstanceType=GPUS, InstanceCount=1, CapacityDurationHours=5)
    with pytest.raises(ClientError, match="InvalidCapacityBlockOfferingIdNotFound"):
        api.purchase_capacity_block(CapacityBlockOfferingId="cb-0123456789abcdef0", InstancePlatform="Linux/UNIX")
    with pytest.raises(ClientError, match="OperationNotPermitted"):
        api.cancel_capacity_reservation(CapacityReservationId=buy(local))
