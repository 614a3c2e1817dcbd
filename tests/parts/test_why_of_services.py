"""`phalanx why` at its command line: failures that the local cloud's services cause, and the quotas that it shows."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aws_here import AwsHere
from botocore.exceptions import ClientError
from fleet_fakes import IMAGE, ZONE, name, until
from stack_fakes import HANDLE, TOPIC, Stacks, stacks, waits

from localcloud.daemon import faults
from phalanx import connection
from phalanx.aws.refusals import translate

SPEC = "cloud: aws\nnodes: 2\ntype: c5.large\nssh_from: 203.0.113.0/24\n"
ADDRESS = {"Type": "AWS::EC2::EIP", "Properties": {"Domain": "vpc"}}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as made:
        yield made


class Account(AwsHere):
    """An account that may refuse to show its quotas."""

    denies = False

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        if self.denies and service == "service-quotas":
            error = ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, operation)
            raise translate(error, f"{service}:{operation}", "AWS") from error
        return super().call(service, operation, **arguments)


@pytest.fixture
def account(local: Stacks, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    made = Account(local.client)
    monkeypatch.setattr(connection, "connect", lambda *_: made)
    yield made
    faults.apply(local.context, {"address_limit": None, "capacity": {"c5.large": None}})


@pytest.fixture
def why(phalanx: Any, tmp_path: Path, account: Account) -> Callable[[str], dict[str, Any]]:
    """Return what `phalanx why --json` says of the stack of this id."""

    def ask(stack: str) -> dict[str, Any]:
        (tmp_path / "phalanx.yaml").write_text(f"name: {stack.split('/')[1]}\n{SPEC}")
        assert phalanx("why", "--json") == 0, phalanx.err
        return json.loads(phalanx.out)

    return ask


def without_addresses(local: Stacks) -> tuple[str, int]:
    """Return a stack that found the quota of addresses used up, and how many are in use."""
    in_use = len(local.client("ec2").describe_addresses()["Addresses"])
    faults.apply(local.context, {"address_limit": in_use})
    stack = local.create({"HeadAddress": ADDRESS})
    assert local.settled(stack) == "ROLLBACK_COMPLETE"
    return stack, in_use


def test_a_quota_that_is_used_up_is_shown_with_its_value_and_the_way_to_raise_it(local, why):
    stack, in_use = without_addresses(local)
    found = why(stack)
    assert "quota of Elastic IPs" in found["cause"]
    failure, quota = found["evidence"]
    assert failure["source"] == "stack"
    assert quota == {
        "source": "Service Quotas",
        "text": f"your quota “EC2-VPC Elastic IPs” (L-0263D0A3) leaves 0 of {in_use} "
        f"Elastic IP{'s' * (in_use != 1)} in us-east-1 ({in_use} in use by others), and 2 are needed. Request more: "
        "`aws service-quotas request-service-quota-increase --region us-east-1 --service-code ec2 --quota-code "
        f"L-0263D0A3 --desired-value {in_use + 2}`",
    }


def test_a_quota_that_has_room_again_is_shown_without_a_request_for_more(local, why):
    stack, in_use = without_addresses(local)
    faults.apply(local.context, {"address_limit": in_use + 5})
    assert why(stack)["evidence"][1]["text"].endswith(
        f"leaves 5 of {in_use + 5} Elastic IPs in us-east-1 ({in_use} in use by others), and 2 are needed"
    )


def test_quotas_that_may_not_be_asked_add_nothing(local, account, why):
    stack, _ = without_addresses(local)
    account.denies = True
    found = why(stack)
    assert "quota of Elastic IPs" in found["cause"]
    assert [one["source"] for one in found["evidence"]] == ["stack"]


def test_an_update_that_failed_is_forgotten_once_another_one_worked(local, why):
    stack = local.made({"Topic": TOPIC})
    faults.apply(local.context, {"address_limit": 0})
    with_address = {"Topic": TOPIC, "HeadAddress": ADDRESS}
    assert local.updated(stack, with_address) == "UPDATE_ROLLBACK_COMPLETE"
    assert "quota of Elastic IPs" in why(stack)["cause"]
    faults.apply(local.context, {"address_limit": None})
    assert local.updated(stack, with_address) == "UPDATE_COMPLETE"
    assert why(stack)["cause"] is None
    assert local.deleted(stack) == "DELETE_COMPLETE"  # other tests count addresses


def network(local: Stacks) -> tuple[str, str]:
    """Make a VPC with a subnet; return their ids."""
    ec2 = local.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    # EC2 would pick any zone, and us-east-1e has no c5.large.
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24", AvailabilityZone=ZONE)
    return vpc, subnet["Subnet"]["SubnetId"]


def lustre(local: Stacks) -> Callable[[int], dict[str, Any]]:
    """Return how a file system of some size is declared, in a network of its own."""
    ec2, (vpc, subnet) = local.client("ec2"), network(local)
    group = ec2.create_security_group(GroupName="lustre", Description="Lustre", VpcId=vpc)["GroupId"]
    rule = {"IpProtocol": "tcp", "FromPort": 988, "ToPort": 988, "UserIdGroupPairs": [{"GroupId": group}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    where = {"SubnetIds": [subnet], "SecurityGroupIds": [group]}
    kind = {"DeploymentType": "SCRATCH_2"}

    def of(size_gib: int) -> dict[str, Any]:
        given = {"FileSystemType": "LUSTRE", "StorageCapacity": size_gib, "LustreConfiguration": kind, **where}
        return {"Lustre": {"Type": "AWS::FSx::FileSystem", "Properties": given}}

    return of


def test_a_second_growth_of_lustre_within_six_hours_is_named(local, why):
    of = lustre(local)
    stack = local.made(of(1200))
    assert local.updated(stack, of(2400)) == "UPDATE_COMPLETE"
    assert why(stack)["cause"] is None
    assert local.updated(stack, of(4800)) == "UPDATE_ROLLBACK_COMPLETE"
    assert "grew less than six hours ago" in why(stack)["cause"]
    local.clock.advance(6 * 3600)
    assert local.updated(stack, of(4800)) == "UPDATE_COMPLETE"
    assert why(stack)["cause"] is None
    assert local.deleted(stack) == "DELETE_COMPLETE"


def with_head(local: Stacks, desired: int) -> dict[str, Any]:
    """Declare the group of a head, which may have no machine, and a wait for the head's word."""
    data = {"ImageId": IMAGE, "InstanceType": "c5.large"}
    made = local.client("ec2").create_launch_template(LaunchTemplateName=name("template"), LaunchTemplateData=data)
    sizes = {"MinSize": "0", "MaxSize": "1", "DesiredCapacity": str(desired)}
    group = {
        "AutoScalingGroupName": {"Fn::Sub": "${AWS::StackName}-head"},
        "LaunchTemplate": {"LaunchTemplateId": made["LaunchTemplate"]["LaunchTemplateId"], "Version": "1"},
        "VPCZoneIdentifier": [network(local)[1]],
        **sizes,
    }
    head = {"Type": "AWS::AutoScaling::AutoScalingGroup", "Properties": group}
    return {"HeadGroup": head, "Handle": HANDLE, "Ready1": {**waits(), "DependsOn": "HeadGroup"}}


def waiting(local: Stacks, desired: int) -> str:
    """Return a stack that waits for its head's word."""
    stack = local.create(with_head(local, desired))
    # Its status shows a moment before its deadline is set; time that moves in between would move the deadline.
    until(lambda: 600.0 in local.clock.delays_s(), "Ready1's deadline")
    return stack


def time_is_up(local: Stacks, stack: str) -> None:
    local.clock.advance(600)
    assert local.settled(stack) == "ROLLBACK_COMPLETE"
    assert "WaitCondition timed out" in local.reason(stack, "Ready1", "CREATE_FAILED")


def test_why_the_head_could_not_be_launched_again_is_known_after_the_rollback(local, why):
    stack = waiting(local, desired=1)
    faults.apply(local.context, {"capacity": {"c5.large": 0}})
    group, asg = local.physical(stack, "HeadGroup"), local.client("autoscaling")
    (shown,) = asg.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"]
    local.client("ec2").terminate_instances(InstanceIds=[shown["Instances"][0]["InstanceId"]])
    of_group = functools.partial(asg.describe_scaling_activities, AutoScalingGroupName=group)
    until(lambda: "Failed" in [one["StatusCode"] for one in of_group()["Activities"]], "a failed launch")
    time_is_up(local, stack)
    faults.apply(local.context, {"capacity": {"c5.large": None}})
    found = why(stack)
    assert "no capacity left for this type" in found["cause"], found
    assert found["evidence"][0]["source"] == "Auto Scaling"


def test_a_head_that_was_never_launched_is_told_from_one_that_never_spoke(local, why):
    stack = waiting(local, desired=1)
    time_is_up(local, stack)
    assert "a machine started" in why(stack)["cause"]
    stack = waiting(local, desired=0)
    time_is_up(local, stack)
    assert why(stack)["cause"] == "Auto Scaling launched no machine for the head, and gave no reason"
