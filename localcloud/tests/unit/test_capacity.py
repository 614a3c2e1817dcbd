"""The capacity pool: limits by type, zone and vCPUs, and launches that fail on demand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localcloud.ec2.capacity import CapacityError, LaunchFailure, Pool


def test_a_pool_without_limits_never_refuses():
    pool = Pool()
    pool.take("p5.48xlarge", "us-east-1a", 192, count=1000)


def test_a_limit_counts_what_is_in_use_and_is_lifted_again():
    pool = Pool()
    pool.limit("c5.large", 2)
    pool.take("c5.large", "us-east-1a", 2)
    pool.take("c5.large", "us-east-1b", 2)
    with pytest.raises(CapacityError) as refused:
        pool.take("c5.large", "us-east-1a", 2)
    assert refused.value.code == "InsufficientInstanceCapacity"
    pool.take("c5.xlarge", "us-east-1a", 4)
    pool.give_back("c5.large", "us-east-1b", 2)
    pool.take("c5.large", "us-east-1a", 2)
    pool.limit("c5.large", None)
    pool.take("c5.large", "us-east-1a", 2)


def test_one_zone_can_be_empty_while_another_is_not():
    pool = Pool()
    pool.limit("c5.large", 0, "us-east-1a")
    pool.take("c5.large", "us-east-1b", 2)
    with pytest.raises(CapacityError, match=r"Availability Zone you requested \(us-east-1a\)"):
        pool.take("c5.large", "us-east-1a", 2)


def test_several_at_once_are_all_or_none():
    pool = Pool()
    pool.limit("c5.large", 3)
    with pytest.raises(CapacityError):
        pool.take("c5.large", "us-east-1a", 2, count=4)
    pool.take("c5.large", "us-east-1a", 2, count=3)


def test_the_quota_counts_vcpus_of_all_types():
    pool = Pool()
    pool.limit_vcpus(6)
    pool.take("c5.large", "us-east-1a", 2)
    with pytest.raises(CapacityError, match="current vCPU limit of 6") as refused:
        pool.take("c5.2xlarge", "us-east-1a", 8)
    assert refused.value.code == "VcpuLimitExceeded"
    pool.take("c5.xlarge", "us-east-1a", 4)


def test_launches_fail_as_often_as_asked():
    pool = Pool()
    pool.fail_launches(LaunchFailure("The image id does not exist", "InvalidAMIID.NotFound", remaining=2))
    for _ in range(2):
        with pytest.raises(CapacityError, match="The image id does not exist"):
            pool.take("c5.large", "us-east-1a", 2)
    pool.take("c5.large", "us-east-1a", 2)


@settings(deadline=None)
@given(st.binary(max_size=40).map(lambda data: [byte % 2 == 1 for byte in data]), st.integers(0, 5))
def test_no_more_than_the_limit_is_ever_in_use(takes, limit):
    pool, used = Pool(), 0
    pool.limit("c5.large", limit)
    for take in takes:
        if not take and used:
            pool.give_back("c5.large", "us-east-1a", 2)
            used -= 1
        elif take:
            try:
                pool.take("c5.large", "us-east-1a", 2)
                used += 1
            except CapacityError:
                assert used == limit
        assert used <= limit
