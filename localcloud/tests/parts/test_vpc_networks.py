"""A VPC's network as it is read from EC2 and EFS: which nodes get out, and what their groups allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from fleet_fakes import IMAGE, Cloud, cloud

from localcloud.ec2 import fleet
from localcloud.network import reading
from localcloud.network.records import Network, Rule

ANYWHERE = "0.0.0.0/0"


@dataclass
class Site:
    """A VPC like that of a cluster: a node with an Elastic IP, and one behind a NAT gateway."""

    cloud: Cloud
    vpc: str
    made: dict[str, str]

    @property
    def ec2(self) -> Any:
        return self.cloud.client("ec2")

    def read(self) -> Network:
        found = reading.network(self.cloud.context.account, self.vpc, fleet.current().live())
        assert found is not None
        return found

    def groups_of(self, node: str) -> tuple[str, ...]:
        return next(i.groups for i in self.read().nodes if i.address == self.made[f"{node} address"])

    def get_out(self) -> set[str]:
        """Return which of the nodes, "public" and "private", get out."""
        network = self.read()
        out = {i.address for i in network.nodes if any(r.works and (i.public or not r.to_internet) for r in i.routes)}
        return {name for name in ("public", "private") if self.made[f"{name} address"] in out}


@pytest.fixture
def site(tmp_path) -> Iterator[Site]:
    with cloud(tmp_path) as made:
        vpc, (public, private) = made.network(("us-east-1a", "us-east-1a"))
        yield Site(made, vpc, _build(made, vpc, public, private))


def _build(made: Cloud, vpc: str, public: str, private: str) -> dict[str, str]:
    ec2 = made.client("ec2")
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    out, _ = _table(ec2, vpc, public, GatewayId=gateway)
    nat = ec2.create_nat_gateway(SubnetId=public, AllocationId=_address(ec2)["AllocationId"])["NatGateway"]
    inner, association = _table(ec2, vpc, private, NatGatewayId=nat["NatGatewayId"])
    head, worker = (_node(made, subnet) for subnet in (public, private))
    elastic = ec2.associate_address(InstanceId=head["InstanceId"], AllocationId=_address(ec2)["AllocationId"])
    return {
        "gateway": gateway,
        "nat": nat["NatGatewayId"],
        "public table": out,
        "private table": inner,
        "private association": association,
        "elastic": elastic["AssociationId"],
        "public address": head["PrivateIpAddress"],
        "private address": worker["PrivateIpAddress"],
        "worker": worker["InstanceId"],
    }


def _table(ec2: Any, vpc: str, subnet: str, **target: str) -> tuple[str, str]:
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock=ANYWHERE, **target)
    return table, ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)["AssociationId"]


def _address(ec2: Any) -> dict[str, str]:
    return ec2.allocate_address(Domain="vpc")


def _node(made: Cloud, subnet: str) -> dict[str, str]:
    asked = {"ImageId": IMAGE, "MinCount": 1, "MaxCount": 1, "InstanceType": "c5.large"}
    return made.client("ec2").run_instances(**asked, **({"SubnetId": subnet} if subnet else {}))["Instances"][0]


def delete_the_nat_gateway(site: Site) -> None:
    site.ec2.delete_nat_gateway(NatGatewayId=site.made["nat"])


def take_the_elastic_ip(site: Site) -> None:
    site.ec2.disassociate_address(AssociationId=site.made["elastic"])


def delete_the_public_route(site: Site) -> None:
    site.ec2.delete_route(RouteTableId=site.made["public table"], DestinationCidrBlock=ANYWHERE)


def delete_the_private_route(site: Site) -> None:
    site.ec2.delete_route(RouteTableId=site.made["private table"], DestinationCidrBlock=ANYWHERE)


def leave_the_private_subnet_the_main_table(site: Site) -> None:
    site.ec2.disassociate_route_table(AssociationId=site.made["private association"])


def route_the_private_subnet_to_the_internet_gateway(site: Site) -> None:
    table, gateway = site.made["private table"], site.made["gateway"]
    site.ec2.replace_route(RouteTableId=table, DestinationCidrBlock=ANYWHERE, GatewayId=gateway)


@pytest.mark.parametrize(
    ("change", "still_out"),
    [
        (delete_the_nat_gateway, {"public"}),
        (take_the_elastic_ip, {"private"}),
        (delete_the_public_route, set()),
        (delete_the_private_route, {"public"}),
        (leave_the_private_subnet_the_main_table, {"public"}),
        (route_the_private_subnet_to_the_internet_gateway, {"public"}),
    ],
)
def test_each_part_of_the_way_out_is_needed(site: Site, change: Callable[[Site], None], still_out: set[str]):
    assert site.get_out() == {"public", "private"}
    change(site)
    assert site.get_out() == still_out


def test_groups_are_read_with_their_ports_and_peers(site: Site):
    group = site.ec2.create_security_group(GroupName="g", Description="g", VpcId=site.vpc)["GroupId"]
    tcp = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 23, "IpRanges": [{"CidrIp": "192.0.2.0/24"}]}
    ping = {"IpProtocol": "icmp", "FromPort": 8, "ToPort": -1, "UserIdGroupPairs": [{"GroupId": group}]}
    site.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[tcp, ping])
    site.ec2.modify_instance_attribute(InstanceId=site.made["worker"], Groups=[group])
    assert site.groups_of("private") == (group,)
    network = site.read()
    assert network.groups[group].ingress == (
        Rule("tcp", 22, 23, networks=("192.0.2.0/24",)),
        Rule("icmp", 8, None, groups=(group,)),
    )
    assert network.groups[group].egress == (Rule("-1", networks=(ANYWHERE,)),)


def test_an_interfaces_new_groups_replace_the_old_ones(site: Site):
    group = site.ec2.create_security_group(GroupName="g", Description="g", VpcId=site.vpc)["GroupId"]
    wanted = [{"Name": "addresses.private-ip-address", "Values": [site.made["private address"]]}]
    (interface,) = site.ec2.describe_network_interfaces(Filters=wanted)["NetworkInterfaces"]
    interface_id = interface["NetworkInterfaceId"]
    site.ec2.modify_network_interface_attribute(NetworkInterfaceId=interface_id, Groups=[group])
    assert site.groups_of("private") == (group,)


def test_the_default_vpc_has_a_way_out(site: Site):
    (vpc,) = site.ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    _node(site.cloud, "")
    (node,) = replace(site, vpc=vpc["VpcId"]).read().nodes
    assert node.public
    assert [route.works for route in node.routes] == [True]


def test_a_mount_target_without_groups_has_the_vpcs_default_group(site: Site):
    efs = site.cloud.client("efs")
    subnet = site.ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [site.vpc]}])["Subnets"][0]["SubnetId"]
    system = efs.create_file_system(CreationToken="t")["FileSystemId"]
    target = efs.create_mount_target(FileSystemId=system, SubnetId=subnet)
    wanted = [{"Name": "vpc-id", "Values": [site.vpc]}, {"Name": "group-name", "Values": ["default"]}]
    default = site.ec2.describe_security_groups(Filters=wanted)["SecurityGroups"][0]["GroupId"]
    (read,) = site.read().mount_targets
    assert (read.address, read.groups) == (target["IpAddress"], (default,))
    efs.delete_mount_target(MountTargetId=target["MountTargetId"])
    assert site.read().mount_targets == ()


def test_members_of_a_vpcs_default_group_reach_each_other(site: Site):
    (group,) = {group for node in site.read().nodes for group in node.groups}
    assert site.read().groups[group].ingress == (Rule("-1", groups=(group,)),)


def test_a_vpc_that_is_gone_has_no_network(site: Site):
    assert reading.network(site.cloud.context.account, "vpc-0123456789abcdef0", []) is None


def test_public_names_are_those_of_a_vpc_with_both_dns_attributes(site: Site):
    public = str(next(i.public_ip for i in fleet.current().live() if i.public_ip))
    name = f"ec2-{public.replace('.', '-')}.compute-1.amazonaws.com"

    def seen() -> tuple[bool, bool, dict[str, str]]:
        dns = site.read().dns
        return dns.is_on, dns.has_host_names, dict(dns.public)

    def shown() -> str:
        every = site.ec2.describe_instances()["Reservations"]
        return next(i["PublicDnsName"] for r in every for i in r["Instances"] if i.get("PublicIpAddress") == public)

    assert (seen(), shown()) == ((True, False, {}), "")
    site.ec2.modify_vpc_attribute(VpcId=site.vpc, EnableDnsHostnames={"Value": True})
    assert (seen(), shown()) == ((True, True, {name: site.made["public address"]}), name)
    site.ec2.modify_vpc_attribute(VpcId=site.vpc, EnableDnsSupport={"Value": False})
    assert (seen(), shown()) == ((False, True, {}), "")
