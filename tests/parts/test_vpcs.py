"""What a plan learns of the subnets that a spec names, from a VPC that a user made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from aws_here import AwsHere
from clusters import aws_spec
from error_codes import raises_code
from own_vpc import EVERYWHERE, ClosedVpc, OwnVpc
from stack_fakes import Stacks, stacks

from localcloud.ec2 import service as local_ec2
from phalanx.aws import vpcs
from phalanx.plan.existing_vpc import INTERNET, NAT, OTHER, Endpoint, ExistingVpc


class Own(OwnVpc):
    """A VPC of a user, and what a plan learns of it."""

    def __init__(self, cloud: Stacks) -> None:
        super().__init__(cloud.client("ec2"))
        self.cloud = cloud

    def described(self, **changes: Any) -> ExistingVpc:
        network = {"head_subnet": self.head, "worker_subnet": self.workers, **changes}
        found = vpcs.find(AwsHere(self.cloud.client), aws_spec(network=network))
        assert found is not None
        return found


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Iterator[Own]:
    with stacks(tmp_path_factory.mktemp("state")) as cloud:
        yield Own(cloud)


def test_subnets_are_described_with_their_ways_out(own):
    found = own.described()
    assert (found.vpc, found.dns_support, found.dns_hostnames) == (own.vpc, True, True)
    assert (found.head.way_out, found.workers.way_out) == (INTERNET, NAT)
    assert (found.workers.zone, found.workers.cidr, found.workers.free) == ("us-east-1b", "10.1.1.0/28", 11)
    assert found.networks == ("10.1.0.0/28", "10.1.1.0/28")
    assert not found.workers.filtered
    assert vpcs.find(AwsHere(own.cloud.client), aws_spec()) is None


def test_addresses_of_the_cluster_itself_are_free_for_it(own):
    """Or a cluster that is up in a small subnet could not be planned again."""
    made = own.ec2.create_security_group(GroupName="demo-NodeSecurityGroup-1AB", Description="nodes", VpcId=own.vpc)
    interfaces = [
        own.ec2.create_network_interface(SubnetId=own.workers, Groups=groups)["NetworkInterface"]["NetworkInterfaceId"]
        for groups in ([made["GroupId"]], [])
    ]
    assert own.described().workers.free == 10
    for interface in interfaces:
        own.ec2.delete_network_interface(NetworkInterfaceId=interface)
    own.ec2.delete_security_group(GroupId=made["GroupId"])


def test_a_vpc_of_a_user_keeps_the_local_cloud_running(own):
    assert own.vpc in local_ec2.vpcs_of_users()


def test_subnets_that_do_not_exist_are_named_together(own):
    with raises_code("no-subnet", "subnet-0000000a", "subnet-0000000b"):
        own.described(head_subnet="subnet-0000000a", worker_subnet="subnet-0000000b")


def test_a_subnet_without_a_table_of_its_own_has_the_main_one(own):
    (association,) = [
        one["RouteTableAssociationId"]
        for one in own.ec2.describe_route_tables(RouteTableIds=[own.own_table])["RouteTables"][0]["Associations"]
    ]
    own.ec2.disassociate_route_table(AssociationId=association)
    assert own.described().workers.way_out == ""
    own.ec2.associate_route_table(RouteTableId=own.own_table, SubnetId=own.workers)
    assert own.described().workers.way_out == NAT


def test_another_target_than_a_gateway_is_named_as_such(own):
    interface = own.ec2.create_network_interface(SubnetId=own.head)["NetworkInterface"]["NetworkInterfaceId"]
    own.ec2.delete_route(RouteTableId=own.own_table, DestinationCidrBlock=EVERYWHERE)
    own.route(own.own_table, NetworkInterfaceId=interface)
    assert own.described().workers.way_out == OTHER
    own.ec2.delete_route(RouteTableId=own.own_table, DestinationCidrBlock=EVERYWHERE)
    own.route(own.own_table, NatGatewayId=own.nat)


def test_an_acl_with_rules_of_its_own_is_noticed(own):
    (acl,) = own.ec2.describe_network_acls(Filters=[{"Name": "association.subnet-id", "Values": [own.workers]}])[
        "NetworkAcls"
    ]
    entry = {"NetworkAclId": acl["NetworkAclId"], "RuleNumber": 50, "Egress": True}
    own.ec2.create_network_acl_entry(**entry, Protocol="6", RuleAction="deny", CidrBlock=EVERYWHERE)
    assert own.described().workers.filtered
    own.ec2.delete_network_acl_entry(**entry)


def test_a_nat_gateway_that_is_gone_leads_nowhere(own):
    where = {"RouteTableId": own.own_table, "DestinationCidrBlock": EVERYWHERE}
    address = own.ec2.allocate_address(Domain="vpc")["AllocationId"]
    other = own.ec2.create_nat_gateway(SubnetId=own.head, AllocationId=address)["NatGateway"]["NatGatewayId"]
    own.ec2.replace_route(**where, NatGatewayId=other)
    assert own.described().workers.way_out == NAT
    own.ec2.delete_nat_gateway(NatGatewayId=other)
    assert own.described().workers.way_out == ""
    own.ec2.release_address(AllocationId=address)
    own.ec2.replace_route(**where, NatGatewayId=own.nat)


@pytest.fixture(scope="module")
def closed(own: Own) -> Iterator[ClosedVpc]:
    """A VPC without a way out, with endpoints for S3 in the head's subnet and for SQS and SNS."""
    made = ClosedVpc(own.ec2, "10.9")
    own.ec2.modify_subnet_attribute(SubnetId=made.head, MapPublicIpOnLaunch={"Value": True})
    made.gateway_endpoint("s3", made.table)
    made.interface_endpoint("sqs", "10.9.0.0/28", "192.168.0.0/16")
    made.interface_endpoint("sns", PrivateDnsEnabled=False)
    yield made
    made.delete()


def found_in(own: Own, closed: ClosedVpc, cluster: str = "demo") -> ExistingVpc:
    network = {"access": "private", "head_subnet": closed.head, "worker_subnet": closed.workers}
    found = vpcs.find(AwsHere(own.cloud.client), aws_spec(name=cluster, network=network, ssh_from=""))
    assert found is not None
    return found


def test_the_endpoints_of_a_vpc_are_described_with_whom_they_serve(own: Own, closed: ClosedVpc):
    found = found_in(own, closed)
    assert [subnet.table for subnet in found.subnets] == [closed.table, closed.own_table]
    assert [subnet.gives_addresses for subnet in found.subnets] == [True, False]
    assert found.is_closed and found.blocks == ("10.9.0.0/16",)
    assert found.interface_endpoints == 2, "the quota counts it, also if nobody finds it by the service's name"
    s3, sqs = found.endpoints
    assert s3 == Endpoint(closed.endpoints[0], "s3", tables=(closed.table,))
    assert (sqs.service, sqs.zones, sqs.open_to) == ("sqs", ("us-east-1b",), ("10.9.0.0/28", "192.168.0.0/16"))


def test_an_endpoint_of_the_cluster_itself_is_none_of_the_user_s(own: Own, closed: ClosedVpc):
    """Or the next `up` would leave it out of the stack."""
    tag = [{"Key": "phalanx:cluster", "Value": "mine"}]
    own.ec2.create_tags(Resources=[closed.endpoints[1]], Tags=tag)
    assert [one.service for one in found_in(own, closed, "mine").endpoints] == ["s3"]
    assert [one.service for one in found_in(own, closed, "other").endpoints] == ["s3", "sqs"]
    own.ec2.delete_tags(Resources=[closed.endpoints[1]], Tags=tag)


@pytest.mark.parametrize(
    ("rule", "open_to"),
    [
        ({"IpProtocol": "-1", "IpRanges": [{"CidrIp": "10.9.1.0/28"}]}, ("10.9.1.0/28",)),
        ({"IpProtocol": "tcp", "FromPort": 0, "ToPort": 1024, "IpRanges": [{"CidrIp": EVERYWHERE}]}, (EVERYWHERE,)),
        ({"IpProtocol": "tcp", "FromPort": 80, "ToPort": 442, "IpRanges": [{"CidrIp": EVERYWHERE}]}, ()),
        ({"IpProtocol": "udp", "FromPort": 443, "ToPort": 443, "IpRanges": [{"CidrIp": EVERYWHERE}]}, ()),
        ({"IpProtocol": "-1", "PrefixListIds": [{"PrefixListId": "pl-1"}]}, None),
        ({"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-1"}]}, ()),
    ],
)
def test_an_endpoint_s_rules_say_whom_it_lets_in(rule: dict[str, Any], open_to: tuple[str, ...] | None):
    assert vpcs.open_to([rule]) == open_to


def test_a_policy_of_its_own_is_noticed(own: Own, closed: ClosedVpc):
    bound = closed.gateway_endpoint("dynamodb", closed.table)
    one = json.dumps({"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "dynamodb:*", "Resource": "*"}]})
    own.ec2.modify_vpc_endpoint(VpcEndpointId=bound, PolicyDocument=one)
    assert {one.service: one.is_open for one in found_in(own, closed).endpoints}["dynamodb"] is False
    own.ec2.delete_vpc_endpoints(VpcEndpointIds=[closed.endpoints.pop()])


def test_why_asks_which_services_nodes_reach(own: Own, closed: ClosedVpc):
    aws = AwsHere(own.cloud.client)
    assert vpcs.services(aws, closed.vpc, (closed.head,)) == ["s3", "sqs"]
    assert vpcs.services(aws, closed.vpc, (closed.head, closed.workers)) == ["sqs"], "one table has no route to S3"
    assert vpcs.services(aws, own.vpc, (own.workers,)) is None
