"""Root on the head can't spend more than the user allowed: it can't change the workers' group's maximum size."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from botocore.exceptions import ClientError
from local_clouds import api, api_of_node

pytestmark = pytest.mark.cluster

GROUP = "contract-workers"


def group(cluster) -> dict:
    return api(cluster, "autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[GROUP])["AutoScalingGroups"][
        0
    ]


def test_root_on_the_head_gets_no_more_workers_than_the_user_asked_for(cluster):
    """Not even one more: a cluster of four nodes has three workers."""
    head = api_of_node(cluster, "head", "autoscaling")
    for number in (4, 500):
        with pytest.raises(ClientError, match=f"SetDesiredCapacity value {number} is above max value 3"):
            head.set_desired_capacity(AutoScalingGroupName=GROUP, DesiredCapacity=number)
    with pytest.raises(ClientError, match="not authorized to perform: autoscaling:UpdateAutoScalingGroup"):
        head.update_auto_scaling_group(AutoScalingGroupName=GROUP, MaxSize=500)
    after = group(cluster)
    assert (after["MaxSize"], after["DesiredCapacity"]) == (3, 3)


def test_root_on_a_worker_changes_no_size_at_all(cluster):
    worker = api_of_node(cluster, "worker2", "autoscaling")
    with pytest.raises(ClientError, match="not authorized to perform: autoscaling:SetDesiredCapacity"):
        worker.set_desired_capacity(AutoScalingGroupName=GROUP, DesiredCapacity=4)


def test_root_on_the_head_moves_no_end_of_a_lease(cluster):
    head = api_of_node(cluster, "head", "autoscaling")
    later = {"StartTime": datetime(2099, 1, 1, tzinfo=timezone.utc), "DesiredCapacity": 3}
    for group in (GROUP, "contract-head"):
        with pytest.raises(ClientError, match="not authorized to perform: autoscaling:PutScheduledUpdateGroupAction"):
            head.put_scheduled_update_group_action(
                AutoScalingGroupName=group, ScheduledActionName="phalanx-lease", **later
            )
        with pytest.raises(ClientError, match="not authorized to perform: autoscaling:DeleteScheduledAction"):
            head.delete_scheduled_action(AutoScalingGroupName=group, ScheduledActionName="phalanx-lease")
    with pytest.raises(ClientError, match="SetDesiredCapacity value 2 is above max value 1"):
        head.set_desired_capacity(AutoScalingGroupName="contract-head", DesiredCapacity=2)
