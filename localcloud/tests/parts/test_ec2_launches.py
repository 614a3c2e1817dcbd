"""What an instance is launched with, and what EC2 refuses, through its API, with a runner that only records."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import IMAGE, Cloud, cloud, forget_resources, name, until
from instances import described, run, state
from moto.ec2.models.instances import InstanceBackend

from localcloud.daemon import faults, server
from localcloud.daemon.room import Gauges
from localcloud.ec2 import fleet


@pytest.fixture
def local(tmp_path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        yield made


def test_capacity_refusals_have_aws_messages_and_leave_nothing_behind(local):
    _, (subnet,) = local.network()
    faults.apply(local.context, {"capacity": {"c5.large": 1}})
    made = run(local, subnet)
    with pytest.raises(ClientError) as refusal:
        run(local, subnet)
    assert refusal.value.response["Error"] == {
        "Code": "InsufficientInstanceCapacity",
        "Message": "We currently do not have sufficient c5.large capacity in the Availability Zone you requested"
        " (us-east-1a). Our system will be working on provisioning additional capacity.",
    }
    local.client("ec2").terminate_instances(InstanceIds=[made["InstanceId"]])
    until(lambda: state(local, made["InstanceId"]) == "terminated")
    assert run(local, subnet)["InstanceId"]


def test_a_quota_failure_says_quota(local):
    _, (subnet,) = local.network()
    faults.apply(local.context, {"vcpu_limit": 2})
    run(local, subnet)
    with pytest.raises(ClientError, match=r"VcpuLimitExceeded.*current vCPU limit of 2 allows"):
        run(local, subnet)


def test_a_machine_without_room_has_no_capacity_until_its_limit_is_raised(local, tmp_path):
    """The local cloud itself has eight namespaces of a kind."""
    _, (subnet,) = local.network()
    setting = tmp_path / "proc/sys/user/max_net_namespaces"
    setting.parent.mkdir(parents=True)
    setting.write_text(f"{len(fleet.current().live()) + 9}\n")
    with closing(Gauges(tmp_path / "proc")) as local.context.gauges:
        run(local, subnet)
        with pytest.raises(ClientError, match=r"InsufficientInstanceCapacity.* no room .*sysctl -w user.max_net_name"):
            run(local, subnet)
        setting.write_text("100\n")
        run(local, subnet)


def test_a_launch_reads_no_records_of_other_instances(local, monkeypatch):
    """Else the work of launching a cluster grows with the square of its nodes."""
    first, read = launched_into(local), []
    monkeypatch.setattr(InstanceBackend, "all_reservations", lambda *_: read.append("all") or [])
    made = launched_into(local, IamInstanceProfile={"Name": local.profile(local.role())})
    local.client("ec2").modify_instance_attribute(InstanceId=first["InstanceId"], SourceDestCheck={"Value": False})
    assert made["InstanceId"] != first["InstanceId"] and not read


def test_nodes_ask_for_their_data_while_others_are_launched(local, monkeypatch):
    _, (subnet,) = local.network()
    run(local, subnet)
    going_on, may_end, found, launch = threading.Event(), threading.Event(), [], fleet._moto_launch

    def slow(*request):
        going_on.set()
        assert may_end.wait(120)
        return launch(*request)

    monkeypatch.setattr(fleet, "_moto_launch", slow)
    launching = threading.Thread(target=run, args=(local, subnet))
    launching.start()
    assert going_on.wait(120)
    asking = threading.Thread(target=lambda: found.extend(fleet.current().live()), daemon=True)
    asking.start()
    asking.join(5)
    may_end.set()
    assert len(found) == 1
    launching.join()


def launched_into(local: Cloud, **data) -> dict:
    """Run an instance of a launch template with this data."""
    _, (subnet,) = local.network()
    api = local.client("ec2")
    template = {"LaunchTemplateId": local.template(**data)}
    return api.run_instances(LaunchTemplate=template, SubnetId=subnet, MinCount=1, MaxCount=1)["Instances"][0]


def test_a_placement_group_holds_instances_until_they_have_ended(local):
    api, group = local.client("ec2"), name("group")
    tags = [{"ResourceType": "placement-group", "Tags": [{"Key": "team", "Value": "vision"}]}]
    api.create_placement_group(GroupName=group, Strategy="cluster", TagSpecifications=tags)
    (shown,) = api.describe_placement_groups(Filters=[{"Name": "tag:team", "Values": ["vision"]}])["PlacementGroups"]
    assert (shown["GroupName"], shown["Strategy"], shown["State"]) == (group, "cluster", "available")
    made = launched_into(local, Placement={"GroupName": group})
    assert described(local, made["InstanceId"])["Placement"]["GroupName"] == group
    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.InUse"):
        api.delete_placement_group(GroupName=group)
    api.terminate_instances(InstanceIds=[made["InstanceId"]])
    until(lambda: state(local, made["InstanceId"]) == "terminated")
    api.delete_placement_group(GroupName=group)
    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.Unknown"):
        launched_into(local, Placement={"GroupName": group})


def test_a_burstable_type_is_refused_in_a_cluster_placement_group(local):
    group = name("group")
    local.client("ec2").create_placement_group(GroupName=group, Strategy="cluster")
    with pytest.raises(ClientError, match=r"Cluster placement groups are not supported by the 't3\.large'"):
        launched_into(local, InstanceType="t3.large", Placement={"GroupName": group})


def test_interfaces_of_the_fabric_are_counted_and_have_no_address(local):
    kinds = [(0, 0, "interface"), (0, 1, "efa-only"), (1, 0, "efa-only"), (2, 0, "efa-only"), (3, 0, "efa-only")]
    interfaces = [{"NetworkCardIndex": n, "DeviceIndex": m, "InterfaceType": kind} for n, m, kind in kinds]
    made = launched_into(local, InstanceType="p4d.24xlarge", NetworkInterfaces=interfaces)
    assert len(described(local, made["InstanceId"])["NetworkInterfaces"]) == 1
    with pytest.raises(ClientError, match="AttachmentLimitExceeded"):
        launched_into(local, InstanceType="p4d.24xlarge", NetworkInterfaces=[*interfaces, interfaces[-1]])
    with pytest.raises(ClientError, match=r"UnsupportedOperation.* EFA interfaces are not supported on c5\.large"):
        launched_into(local, InstanceType="c5.large", NetworkInterfaces=interfaces[:2])


@pytest.mark.parametrize(
    ("disk", "refused"),
    [
        ({"VolumeSize": 4}, "Volume of size 4GB is smaller than snapshot '[^']+', expect size >= 8GB"),
        ({"VolumeSize": 9, "VolumeType": "gp2", "Iops": 3000}, "The parameter iops is not supported for gp2 volumes"),
    ],
)
def test_a_disk_that_the_image_or_its_type_does_not_allow_is_refused(local, disk, refused):
    _, (subnet,) = local.network()
    with pytest.raises(ClientError, match=refused):
        run(local, subnet, BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": disk}])
    beside = {"DeviceName": "/dev/sdz", "Ebs": {"VolumeType": "gp3"}}
    with pytest.raises(ClientError, match=r"MissingParameter.* must contain the parameter size or snapshotId"):
        run(local, subnet, BlockDeviceMappings=[beside])
    larger = {"VolumeSize": 20, "VolumeType": "gp3", "Iops": 4000}
    assert run(local, subnet, BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": larger}])


@pytest.mark.parametrize(
    "disk",
    [
        {"VolumeSize": 20, "VolumeType": "io2", "Iops": 9000},
        {"VolumeSize": 20, "VolumeType": "gp3", "Iops": 4000, "Throughput": 250},
    ],
    ids=["io2", "gp3"],
)
def test_a_disk_has_its_type_and_speed(local, disk):
    made = launched_into(local, BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": disk}])
    (device,) = described(local, made["InstanceId"])["BlockDeviceMappings"]
    (volume,) = local.client("ec2").describe_volumes(VolumeIds=[device["Ebs"]["VolumeId"]])["Volumes"]
    assert {"VolumeSize": volume["Size"], **{key: volume[key] for key in disk if key != "VolumeSize"}} == disk


def test_user_data_of_more_than_16_kib_is_refused(local):
    _, (subnet,) = local.network()
    run(local, subnet, UserData="x" * 16_384)
    with pytest.raises(ClientError, match="User data is limited to 16384 bytes"):
        run(local, subnet, UserData="x" * 16_385)


def test_a_type_that_is_unknown_or_not_offered_in_the_zone_is_refused(local):
    _, (subnet,) = local.network()
    with pytest.raises(ClientError, match=r"Invalid value 'c5\.tiny' for InstanceType"):
        run(local, subnet, InstanceType="c5.tiny")
    _, (elsewhere,) = local.network(("us-east-1e",))
    with pytest.raises(ClientError, match=r"Unsupported.*not supported in your requested Availability Zone"):
        run(local, elsewhere, InstanceType="p4d.24xlarge")


def test_a_launch_template_brings_type_profile_groups_and_user_data(local):
    vpc, (subnet,) = local.network()
    api = local.client("ec2")
    group = api.create_security_group(GroupName=name("group"), Description="x", VpcId=vpc)["GroupId"]
    profile = local.profile(local.role())
    template = local.template(
        InstanceType="c5.xlarge",
        IamInstanceProfile={"Name": profile},
        SecurityGroupIds=[group],
        UserData=base64.b64encode(b"#!/bin/sh\n").decode(),
        MetadataOptions={"HttpTokens": "required"},
    )
    made = api.run_instances(MinCount=1, MaxCount=1, SubnetId=subnet, LaunchTemplate={"LaunchTemplateId": template})
    instance = described(local, made["Instances"][0]["InstanceId"])
    assert instance["InstanceType"] == "c5.xlarge"
    assert instance["IamInstanceProfile"]["Arn"].endswith(profile)
    assert [one["GroupId"] for one in instance["SecurityGroups"]] == [group]
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert until(lambda: local.runner.booted)[instance["InstanceId"]].user_data == b"#!/bin/sh\n"


def test_a_refused_launch_leaves_nothing_that_keeps_the_network_from_being_deleted(local):
    vpc, (subnet,) = local.network()
    api = local.client("ec2")
    disk = {"DeviceName": "/dev/sda1", "Ebs": {"SnapshotId": "snap-0123456789abcdef0"}}
    with pytest.raises(ClientError, match=r"InvalidSnapshot\.NotFound"):
        run(local, subnet, BlockDeviceMappings=[disk])
    filters = [{"Name": "vpc-id", "Values": [vpc]}]
    assert api.describe_network_interfaces(Filters=filters)["NetworkInterfaces"] == []
    assert api.describe_instances(Filters=filters)["Reservations"] == []
    assert run(local, subnet)["PrivateIpAddress"] == "10.0.1.5"


def test_a_disk_without_a_size_has_the_images(local):
    _, (subnet,) = local.network()
    template = local.template(
        BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": {"VolumeType": "gp3", "Encrypted": True}}]
    )
    api = local.client("ec2")
    made = api.run_instances(MinCount=1, MaxCount=1, SubnetId=subnet, LaunchTemplate={"LaunchTemplateId": template})
    instance = made["Instances"][0]["InstanceId"]
    attached = [{"Name": "attachment.instance-id", "Values": [instance]}]
    assert [one["Size"] for one in api.describe_volumes(Filters=attached)["Volumes"]] == [8]
    api.terminate_instances(InstanceIds=[instance])
    until(lambda: state(local, instance) == "terminated")
    assert api.describe_volumes(Filters=attached)["Volumes"] == []


def test_the_local_cloud_does_not_stop_while_an_instance_without_a_stack_runs(local):
    """One in the default VPC, which every region has: nothing else says that somebody uses the local cloud."""
    forget_resources(local.context.account)
    stopped: list[Any] = []
    engine: Any = SimpleNamespace(stacks=[])
    server.IdleWatch(local.context, lambda: server._is_needed(engine), lambda: stopped.append(local.clock.now()))
    given = {"ImageId": IMAGE, "InstanceType": "c5.large", "MinCount": 1, "MaxCount": 1}
    (made,) = local.client("ec2").run_instances(**given)["Instances"]
    local.clock.advance(10 * server.IDLE_S)
    assert not stopped
    local.client("ec2").terminate_instances(InstanceIds=[made["InstanceId"]])
    until(lambda: state(local, made["InstanceId"]) == "terminated")
    for _ in range(2):
        local.clock.advance(server.IDLE_S)
    assert stopped
