"""Root on the head can't spend more than the user allowed: it can't change the workers' group's maximum size."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError
from local_clouds import api, api_of_node

pytestmark = pytest.mark.cluster

GROUP = "contract-workers"


def group(cluster) -> dict:
    return api(cluster, "autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[GROUP])["AutoScalingGroups"][
        0
    ]


def test_root_on_the_head_gets_no_more_workers_than_the_user_allows(cluster):
    head = api_of_node(cluster, "head", "autoscaling")
    before = group(cluster)
    with pytest.raises(ClientError, match="SetDesiredCapacity value 500 is above max value 4"):
        head.set_desired_capacity(AutoScalingGroupName=GROUP, DesiredCapacity=500)
    with pytest.raises(ClientError, match="not authorized to perform: autoscaling:UpdateAutoScalingGroup"):
        head.update_auto_scaling_group(AutoScalingGroupName=GROUP, MaxSize=500)
    after = group(cluster)
    assert (after["MaxSize"], after["DesiredCapacity"]) == (before["MaxSize"], before["DesiredCapacity"]) == (4, 3)


def test_root_on_a_worker_changes_no_size_at_all(cluster):
    worker = api_of_node(cluster, "worker2", "autoscaling")
    with pytest.raises(ClientError, match="not authorized to perform: autoscaling:SetDesiredCapacity"):
        worker.set_desired_capacity(AutoScalingGroupName=GROUP, DesiredCapacity=4)
