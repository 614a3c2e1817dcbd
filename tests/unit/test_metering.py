"""What a cluster has used and cost, from Auto Scaling's record of its instances."""

import pytest

from phalanx.aws.auto_scaling import node_hours
from phalanx.aws.model import ScalingActivity
from phalanx.plan import money
from phalanx.plan.money import Cost, Use

NOW_S = 10 * 3600.0


def activity(description: str, begin_h: float, end_h: float, status: str = "Successful") -> ScalingActivity:
    return ScalingActivity(begin_h * 3600, end_h * 3600, description, "", status)


def launch(instance: str, at_h: float, **how) -> ScalingActivity:
    return activity(f"Launching a new EC2 instance: {instance}", at_h, at_h + 0.01, **how)


def end(instance: str, at_h: float) -> ScalingActivity:
    return activity(f"Terminating EC2 instance: {instance}", at_h - 0.01, at_h)


def test_hours_of_running_and_ended_instances():
    found = node_hours([end("i-2", 4.0), launch("i-2", 1.0), launch("i-1", 0.0)], NOW_S)
    assert found == (pytest.approx(13.0), 1)


def test_a_launch_that_ended_at_once_and_one_without_an_instance_cost_nearly_nothing():
    cancelled = launch("i-1", 0.0, status="Cancelled")
    refused = activity("Launching a new EC2 instance.  Status Reason: no capacity", 1.0, 1.0, "Failed")
    assert node_hours([refused, cancelled], NOW_S) == (pytest.approx(0.01), 0)


def test_an_end_whose_launch_is_older_than_the_record_is_left_out():
    assert node_hours([end("i-9", 2.0)], NOW_S) == (0.0, 0)


def test_the_cost_is_that_of_the_nodes_and_of_the_network_since_the_creation():
    assert money.cost("aws", "c5.large", "c5.large", Use(25.0, 75.0, 1, 3, 10.0), 30.0) == Cost(
        round(100 * 0.085 + 30 * 0.055, 2),
        round(4 * 0.085 + 0.055, 4),
        pytest.approx(0.055),
        3.0,
        "prices of us-east-1, 2026-11",
        paid="NAT gateway and addresses",
    )


def test_no_price_is_invented():
    found = money.cost("aws", "c5.large", "x9.large", Use(25.0, 75.0, 1, 3, 10.0), 30.0)
    assert (found.so_far_usd, found.now_usd_per_hour, found.idle_usd_per_hour) == (None, None, pytest.approx(0.055))


def test_the_local_cloud_costs_nothing():
    assert money.cost("local", "c5.large", "c5.large", Use(25.0, 75.0, 1, 3, 10.0), 30.0) == Cost(0.0, 0.0, 0.0, 0.0)


def test_a_head_of_another_type_has_its_own_price():
    found = money.cost("aws", "m5.large", "c5.large", Use(10.0, 0.0, 1, 0, 0.0), 0.0)
    assert (found.so_far_usd, found.now_usd_per_hour) == (0.96, pytest.approx(0.096 + 0.055))
