"""Instances of the local cloud, through the EC2 API, with a runner that only records."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import Cloud, cloud, name, until
from instances import described, run, state

from localcloud.daemon import faults
from localcloud.ec2 import service as ec2

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGB2dHhXZWV6b29vb29vb29vb29vb29vb29vb29vb29v me@here"


@pytest.fixture
def local(tmp_path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        yield made


def test_an_instance_is_pending_until_its_node_runs(local):
    _, (subnet,) = local.network()
    local.runner.gate.clear()
    made = run(local, subnet, UserData="#!/bin/sh\necho hello\n")
    assert made["State"]["Name"] == "pending"
    assert state(local, made["InstanceId"]) == "pending"
    local.runner.gate.set()
    until(lambda: state(local, made["InstanceId"]) == "running")
    machine = local.runner.booted[made["InstanceId"]]
    assert machine.user_data == b"#!/bin/sh\necho hello\n"
    assert (machine.vcpus, machine.zone, machine.vpc_cidr) == (2, "us-east-1a", "10.0.0.0/16")


def test_addresses_skip_what_aws_keeps_and_are_not_reused_at_once(local):
    _, (subnet,) = local.network()
    first, second = run(local, subnet), run(local, subnet)
    assert first["PrivateIpAddress"] == "10.0.1.4"
    assert second["PrivateIpAddress"] == "10.0.1.5"
    until(lambda: len(local.runner.booted) == 2)
    assert local.runner.booted[second["InstanceId"]].hostname == "ip-10-0-1-5"
    local.client("ec2").terminate_instances(InstanceIds=[first["InstanceId"]])
    until(lambda: state(local, first["InstanceId"]) == "terminated")
    assert run(local, subnet)["PrivateIpAddress"] == "10.0.1.6"


def test_a_small_subnet_runs_out_of_addresses_and_gives_released_ones_again(local):
    vpc, _ = local.network()
    made = local.client("ec2").create_subnet(VpcId=vpc, CidrBlock="10.0.9.0/28", AvailabilityZone="us-east-1a")
    small = made["Subnet"]["SubnetId"]
    instances = [run(local, small) for _ in range(11)]
    with pytest.raises(ClientError, match="InsufficientFreeAddressesInSubnet"):
        run(local, small)
    local.client("ec2").terminate_instances(InstanceIds=[instances[3]["InstanceId"]])
    until(lambda: state(local, instances[3]["InstanceId"]) == "terminated")
    assert run(local, small)["PrivateIpAddress"] == instances[3]["PrivateIpAddress"]


def test_termination_kills_the_node_and_frees_what_the_instance_held(local):
    _, (subnet,) = local.network()
    api = local.client("ec2")
    made = run(local, subnet)
    until(lambda: state(local, made["InstanceId"]) == "running")
    address = api.allocate_address(Domain="vpc")
    api.associate_address(AllocationId=address["AllocationId"], InstanceId=made["InstanceId"])
    vpc = made["VpcId"]
    assert address["PublicIp"].startswith("198.19.")
    assert ec2.locate(address["PublicIp"]) == (vpc, made["PrivateIpAddress"])
    answer = api.terminate_instances(InstanceIds=[made["InstanceId"]])["TerminatingInstances"][0]
    assert answer["CurrentState"]["Name"] == "shutting-down"
    until(lambda: state(local, made["InstanceId"]) == "terminated")
    assert (made["InstanceId"], False) in local.runner.killed
    assert not api.describe_addresses(AllocationIds=[address["AllocationId"]])["Addresses"][0].get("InstanceId")
    with pytest.raises(LookupError, match="no running instance"):
        ec2.locate(address["PublicIp"])
    filters = [{"Name": "vpc-id", "Values": [vpc]}]
    assert api.describe_network_interfaces(Filters=filters)["NetworkInterfaces"] == []


def test_a_spot_instance_is_taken_back_two_minutes_after_its_notice(local):
    _, (subnet,) = local.network()
    made = run(local, subnet, InstanceMarketOptions={"MarketType": "spot"})
    until(lambda: state(local, made["InstanceId"]) == "running")
    known = ec2.lookup(local.context)
    assert known(made["VpcId"], made["PrivateIpAddress"]).taken_at is None
    faults.apply(local.context, {"interrupt": {"instance_id": made["InstanceId"]}})
    noticed = known(made["VpcId"], made["PrivateIpAddress"])
    assert (noticed.life_cycle, noticed.taken_at - local.clock.now()) == ("spot", timedelta(minutes=2))
    local.clock.advance(119)
    assert state(local, made["InstanceId"]) == "running"
    local.clock.advance(1)
    until(lambda: state(local, made["InstanceId"]) == "terminated")
    assert described(local, made["InstanceId"])["StateReason"]["Code"] == "Server.SpotInstanceTermination"


@pytest.mark.parametrize(
    ("fault", "why"), [({"instance_id": "i-0"}, "no spot instance"), ({"notice_s": -1}, "0 to 3600 s")]
)
def test_an_interruption_that_makes_no_sense_is_refused(local, fault, why):
    _, (subnet,) = local.network()
    made = run(local, subnet, InstanceMarketOptions={"MarketType": "spot"})
    with pytest.raises(faults.FaultError, match=why):
        faults.apply(local.context, {"interrupt": {"instance_id": made["InstanceId"], **fault}})


def test_several_interfaces_get_no_automatic_public_address(local):
    _, (subnet,) = local.network()
    cards = [{"DeviceIndex": i, "NetworkCardIndex": i, "AssociatePublicIpAddress": True} for i in range(2)]
    template = local.template(NetworkInterfaces=cards)
    with pytest.raises(ClientError, match="associatePublicIPAddress parameter cannot be specified"):
        local.client("ec2").run_instances(
            MinCount=1, MaxCount=1, SubnetId=subnet, LaunchTemplate={"LaunchTemplateId": template}
        )


def test_file_systems_are_mountable_where_they_have_a_mount_target(local):
    _, subnets = local.network(("us-east-1a", "us-east-1b"))
    efs = local.client("efs")
    system = efs.create_file_system(CreationToken=name("efs"))["FileSystemId"]
    target = efs.create_mount_target(FileSystemId=system, SubnetId=subnets[0])["IpAddress"]
    here, there = run(local, subnets[0]), run(local, subnets[1])
    until(lambda: len(local.runner.booted) == 2)
    assert local.runner.booted[here["InstanceId"]].file_systems == {system: target}
    assert local.runner.booted[there["InstanceId"]].file_systems == {}


def test_a_node_that_does_not_start_ends_the_instance_with_the_reason(local):
    _, (subnet,) = local.network()
    local.runner.broken = "no space left on device"
    made = run(local, subnet)
    until(lambda: state(local, made["InstanceId"]) == "terminated")
    assert "no space left on device" in described(local, made["InstanceId"])["StateReason"]["Message"]


def test_a_node_that_ends_by_itself_stops_its_instance(local):
    _, (subnet,) = local.network()
    made = run(local, subnet)
    until(lambda: state(local, made["InstanceId"]) == "running")
    local.runner.on_exit(made["InstanceId"])
    assert state(local, made["InstanceId"]) == "stopped"
    assert not local.runner.killed, "its disk stays, for another start"


def test_a_stopped_instance_starts_again_with_its_address_and_disk(local):
    _, (subnet,) = local.network()
    api = local.client("ec2")
    api.modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
    made = run(local, subnet)
    until(lambda: state(local, made["InstanceId"]) == "running")
    before = described(local, made["InstanceId"])
    answer = api.stop_instances(InstanceIds=[made["InstanceId"]])["StoppingInstances"][0]
    assert (answer["PreviousState"]["Name"], answer["CurrentState"]["Name"]) == ("running", "stopping")
    until(lambda: state(local, made["InstanceId"]) == "stopped")
    stopped = described(local, made["InstanceId"])
    assert "PublicIpAddress" not in stopped
    assert stopped["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert (local.runner.stopped, local.runner.killed) == ([made["InstanceId"]], [])
    with pytest.raises(LookupError):
        ec2.locate(made["PrivateIpAddress"])
    local.runner.booted.clear()
    answer = api.start_instances(InstanceIds=[made["InstanceId"]])["StartingInstances"][0]
    assert (answer["PreviousState"]["Name"], answer["CurrentState"]["Name"]) == ("stopped", "pending")
    until(lambda: state(local, made["InstanceId"]) == "running")
    after = described(local, made["InstanceId"])
    assert list(local.runner.booted) == [made["InstanceId"]]
    for kept in ("PrivateIpAddress", "NetworkInterfaces", "BlockDeviceMappings"):
        assert str(after[kept]).split("Association")[0] == str(before[kept]).split("Association")[0]
    network = ipaddress.ip_network("198.19.0.0/16")
    assert all(ipaddress.ip_address(one["PublicIpAddress"]) in network for one in (before, after))
    assert after["PublicIpAddress"] != before["PublicIpAddress"]


def test_an_elastic_ip_stays_with_a_stopped_instance(local):
    _, (subnet,) = local.network()
    api, made = local.client("ec2"), run(local, subnet)
    until(lambda: state(local, made["InstanceId"]) == "running")
    address = api.allocate_address(Domain="vpc")
    api.associate_address(AllocationId=address["AllocationId"], InstanceId=made["InstanceId"])
    api.stop_instances(InstanceIds=[made["InstanceId"]])
    until(lambda: state(local, made["InstanceId"]) == "stopped")
    assert described(local, made["InstanceId"])["PublicIpAddress"] == address["PublicIp"]


def test_stopped_instances_take_no_capacity_and_need_it_to_start(local):
    _, (subnet,) = local.network()
    api = local.client("ec2")
    faults.apply(local.context, {"capacity": {"c5.large": 1}})
    made = run(local, subnet)
    until(lambda: state(local, made["InstanceId"]) == "running")
    api.stop_instances(InstanceIds=[made["InstanceId"]])
    until(lambda: state(local, made["InstanceId"]) == "stopped")
    other = run(local, subnet)
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        api.start_instances(InstanceIds=[made["InstanceId"]])
    assert state(local, made["InstanceId"]) == "stopped"
    for one in (made, other):
        api.terminate_instances(InstanceIds=[one["InstanceId"]])
        until(lambda one=one: state(local, one["InstanceId"]) == "terminated")
    run(local, subnet)
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        run(local, subnet)


@pytest.mark.parametrize(
    ("market", "hibernate", "code"),
    [({"MarketType": "spot"}, False, "UnsupportedOperation"), (None, True, "UnsupportedOperation.*Hibernate")],
)
def test_what_aws_or_the_local_cloud_can_not_stop_is_refused(local, market, hibernate, code):
    _, (subnet,) = local.network()
    made = run(local, subnet, **({"InstanceMarketOptions": market} if market else {}))
    until(lambda: state(local, made["InstanceId"]) == "running")
    with pytest.raises(ClientError, match=code):
        local.client("ec2").stop_instances(InstanceIds=[made["InstanceId"]], Hibernate=hibernate)
    assert state(local, made["InstanceId"]) == "running"


def test_only_running_instances_stop_and_only_stopped_ones_start(local):
    _, (subnet,) = local.network()
    api = local.client("ec2")
    local.runner.gate.clear()
    made = run(local, subnet)
    with pytest.raises(ClientError, match=r"IncorrectInstanceState.* never reached the 'running' state"):
        api.stop_instances(InstanceIds=[made["InstanceId"]])
    local.runner.gate.set()
    until(lambda: state(local, made["InstanceId"]) == "running")
    api.start_instances(InstanceIds=[made["InstanceId"]])
    assert state(local, made["InstanceId"]) == "running"
    api.terminate_instances(InstanceIds=[made["InstanceId"]])
    until(lambda: state(local, made["InstanceId"]) == "terminated")
    for change in (api.start_instances, api.stop_instances):
        with pytest.raises(ClientError, match="IncorrectInstanceState"):
            change(InstanceIds=[made["InstanceId"]])


def test_boot_delay_and_kill_and_partition_on_demand(local):
    _, (subnet,) = local.network()
    faults.apply(local.context, {"boot_delay_s": 30})
    made = run(local, subnet)
    assert local.clock.delays_s() == [30]
    local.clock.advance(30)
    assert state(local, made["InstanceId"]) == "running"
    faults.apply(local.context, {"partition": {"instance_id": made["InstanceId"]}})
    assert local.runner.cut == {made["InstanceId"]: True}
    faults.apply(local.context, {"kill": {"instance_id": made["InstanceId"], "silent": True}})
    assert local.runner.killed == [(made["InstanceId"], True)]
    assert state(local, made["InstanceId"]) == "running"
    local.clock.advance(120)
    assert state(local, made["InstanceId"]) == "stopped"


def test_an_unknown_fault_is_refused_with_the_known_ones(local):
    with pytest.raises(faults.FaultError, match="unknown fault capcity; the faults are capacity, "):
        faults.apply(local.context, {"capcity": {}})
    with pytest.raises(faults.FaultError, match="no instance i-0 runs here"):
        faults.apply(local.context, {"kill": {"instance_id": "i-0"}})


def test_the_console_output_is_the_end_of_what_the_node_showed(local, tmp_path):
    _, (subnet,) = local.network()
    made = run(local, subnet)["InstanceId"]
    console = tmp_path / "console"
    console.write_bytes(b"x" * 70_000 + b"ready\n")
    local.runner.nodes = lambda: [SimpleNamespace(instance_id=made, console=console)]
    shown = local.client("ec2").get_console_output(InstanceId=made)
    assert (len(shown["Output"]), shown["Output"][-6:]) == (64 * 1024, "ready\n")


def test_a_rebooting_instance_stays_running_and_a_terminated_one_is_ignored(local):
    _, (subnet,) = local.network()
    api = local.client("ec2")
    ended, made = run(local, subnet)["InstanceId"], run(local, subnet)["InstanceId"]
    until(lambda: {state(local, ended), state(local, made)} == {"running"})
    api.terminate_instances(InstanceIds=[ended])
    until(lambda: state(local, ended) == "terminated")
    before = described(local, made)
    api.reboot_instances(InstanceIds=[ended, made])
    until(lambda: local.runner.rebooted == [made])
    assert described(local, made) == before
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        api.reboot_instances(InstanceIds=["i-0123456789abcdef0"])


def test_metadata_facts_are_for_the_address_that_asks(local):
    vpc, (subnet,) = local.network()
    role = local.role()
    made = run(local, subnet, IamInstanceProfile={"Name": local.profile(role)}, UserData="hi")
    find = ec2.lookup(local.context)
    facts = find(vpc, made["PrivateIpAddress"])
    assert facts is not None
    assert (facts.instance_id, facts.role_name, facts.user_data) == (made["InstanceId"], role, b"hi")
    assert facts.tags == {}
    credentials = facts.credentials()
    assert credentials["Expiration"] == "2026-11-20T16:00:00Z"
    assert local.context.issued[credentials["AccessKeyId"]].principal == role
    assert facts.credentials() == credentials
    local.clock.advance(5 * 3600 + 56 * 60)
    assert facts.credentials()["AccessKeyId"] != credentials["AccessKeyId"]
    assert find(vpc, "10.0.1.200") is None
    assert find("vpc-other", made["PrivateIpAddress"]) is None


def test_a_role_that_ec2_may_not_assume_is_reported_to_the_instance(local):
    _, (subnet,) = local.network()
    profile = local.profile(local.role("lambda.amazonaws.com"))
    made = run(local, subnet, IamInstanceProfile={"Name": profile})
    facts = ec2.lookup(local.context)(made["VpcId"], made["PrivateIpAddress"])
    assert facts is not None
    answer = facts.credentials()
    assert (answer["Code"], "trust policy" in answer["Message"]) == ("AssumeRoleUnauthorizedAccess", True)


def test_a_key_pair_that_does_not_exist_is_refused(local):
    _, (subnet,) = local.network()
    with pytest.raises(ClientError, match=r"InvalidKeyPair.NotFound.*The key pair 'nobody' does not exist"):
        run(local, subnet, KeyName="nobody")


def test_the_key_pair_of_the_launch_template_reaches_the_machine(local):
    api = local.client("ec2")
    api.import_key_pair(KeyName="mine", PublicKeyMaterial=PUBLIC_KEY.encode())
    template = local.template(KeyName="mine")
    _, (subnet,) = local.network()
    launched = api.run_instances(
        LaunchTemplate={"LaunchTemplateId": template}, SubnetId=subnet, MinCount=1, MaxCount=1
    )["Instances"][0]
    assert described(local, launched["InstanceId"])["KeyName"] == "mine"
    until(lambda: launched["InstanceId"] in local.runner.booted)
    assert local.runner.booted[launched["InstanceId"]].admin_key == PUBLIC_KEY
