"""AWS::EMR::Cluster in a stack: complete when the cluster is ready, failed with EMR's reason, gone with its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from emr_fakes import ACTION, LABEL, Emr
from fleet_fakes import forget_resources, until
from stack_fakes import stacks


@pytest.fixture(scope="module")
def emr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emr]:
    with stacks(tmp_path_factory.mktemp("state")) as cloud:
        yield Emr(cloud)
        forget_resources(cloud.context.account)


def template(emr: Emr, **more: Any) -> dict[str, Any]:
    """Return the resources of a stack with a cluster of two nodes."""
    group = {"InstanceType": "m5.xlarge", "InstanceCount": 1}
    instances = {
        "Ec2SubnetId": emr.subnet,
        "KeepJobFlowAliveWhenNoSteps": "true",
        "MasterInstanceGroup": group,
        "CoreInstanceGroup": group,
    }
    properties = {
        "Name": "stacked",
        "ReleaseLabel": LABEL,
        "ServiceRole": "EMR_DefaultRole",
        "JobFlowRole": "EMR_EC2_DefaultRole",
        "BootstrapActions": [ACTION],
        "Tags": [{"Key": "team", "Value": "vision"}],
        **more,
        "Instances": {**instances, **more.get("Instances", {})},
    }
    return {"Cluster": {"Type": "AWS::EMR::Cluster", "Properties": properties}}


def started(emr: Emr, **more: Any) -> tuple[str, str]:
    """Create a stack; return its id and its cluster's, once that has launched its nodes."""
    outputs = {"Master": {"Value": {"Fn::GetAtt": ["Cluster", "MasterPublicDNS"]}}}
    stack = emr.cloud.create(template(emr, **more), sections={"Outputs": outputs})
    cluster = emr.cloud.idle_physical(stack, "Cluster")
    until(lambda: len(emr.instances(cluster)) == 2)
    return stack, cluster


def test_a_stack_is_complete_when_its_cluster_is_ready_and_its_deletion_ends_the_nodes(emr):
    stack, cluster = started(emr)
    assert cluster.startswith("j-")
    assert emr.cloud.status(stack, "Cluster") == "CREATE_IN_PROGRESS"
    emr.bootstrap(cluster)
    assert emr.cloud.settled(stack) == "CREATE_COMPLETE"
    assert emr.cloud.outputs(stack) == {"Master": emr.instances(cluster, "MASTER")[0]["PrivateDnsName"]}
    assert emr.describe(cluster)["Tags"] == [{"Key": "team", "Value": "vision"}]
    assert emr.cloud.deleted(stack) == "DELETE_COMPLETE"
    assert emr.ended(cluster) == ("TERMINATED", "USER_REQUEST", "Terminated by user request")


def test_a_stack_fails_with_the_reason_of_its_cluster_and_leaves_no_nodes(emr):
    stack, cluster = started(emr)
    master = emr.instances(cluster, "MASTER")[0]
    emr.report(master, "start")
    emr.report(master, "failed", number=1, how="exit")
    assert emr.cloud.settled(stack) == "ROLLBACK_COMPLETE"
    reason = emr.cloud.reason(stack, "Cluster", "CREATE_FAILED")
    assert f"On the master instance ({master['Ec2InstanceId']}), bootstrap action 1 returned" in reason
    assert not emr.instances(cluster)


def test_a_protected_cluster_keeps_its_stack(emr):
    stack, cluster = started(emr, Instances={"TerminationProtected": True})
    emr.bootstrap(cluster)
    assert emr.cloud.settled(stack) == "CREATE_COMPLETE"
    assert emr.cloud.deleted(stack) == "DELETE_FAILED"
    emr.api.set_termination_protection(JobFlowIds=[cluster], TerminationProtected=False)
    assert emr.cloud.deleted(stack) == "DELETE_COMPLETE"


def test_what_emr_refuses_fails_the_stack_at_once(emr):
    stack = emr.cloud.create(template(emr, ReleaseLabel="emr-7.99.0"))
    assert emr.cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert "release label is invalid: emr-7.99.0" in emr.cloud.reason(stack, "Cluster", "CREATE_FAILED")


def test_instance_fleets_are_refused_by_name(emr):
    stack = emr.cloud.create(template(emr, Instances={"CoreInstanceFleet": {"Name": "fleet"}}))
    assert emr.cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert "CoreInstanceFleet" in emr.cloud.reason(stack, "Cluster", "CREATE_FAILED")
