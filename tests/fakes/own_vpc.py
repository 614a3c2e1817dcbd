"""VPCs of a user, made with EC2's API: one with an internet gateway and a NAT gateway, one without; and an EFS."""

from __future__ import annotations

from typing import Any

EVERYWHERE = "0.0.0.0/0"


class ClosedVpc:
    """A VPC without a way out. `head` and `workers` are the subnets, and `table` and `own_table` their route tables."""

    def __init__(self, ec2: Any, block: str = "10.1", prefix: int = 28) -> None:
        self.ec2 = ec2
        self.endpoints: list[str] = []
        self.groups: list[str] = []
        self.vpc = ec2.create_vpc(CidrBlock=f"{block}.0.0/16")["Vpc"]["VpcId"]
        ec2.modify_vpc_attribute(VpcId=self.vpc, EnableDnsHostnames={"Value": True})
        self.head, self.workers = (self._subnet(f"{block}.{number}.0/{prefix}") for number in range(2))
        self.table, self.own_table = self._table(self.head), self._table(self.workers)

    def gateway_endpoint(self, service: str, *tables: str) -> str:
        """Make a gateway endpoint for these route tables; return its id."""
        return self._endpoint(service, VpcEndpointType="Gateway", RouteTableIds=list(tables))

    def interface_endpoint(self, service: str, *networks: str, **more: Any) -> str:
        """Make an interface endpoint in the workers' subnet that lets HTTPS in from these networks; return its id."""
        group = self.ec2.create_security_group(GroupName=service, Description=service, VpcId=self.vpc)["GroupId"]
        self.groups.append(group)
        rule = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [{"CidrIp": one} for one in networks]}
        if networks:
            self.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
        where = {"SubnetIds": [self.workers], "SecurityGroupIds": [group], "PrivateDnsEnabled": True}
        return self._endpoint(service, VpcEndpointType="Interface", **{**where, **more})

    def _endpoint(self, service: str, **more: Any) -> str:
        named = f"com.amazonaws.us-east-1.{service}"
        made = self.ec2.create_vpc_endpoint(VpcId=self.vpc, ServiceName=named, **more)["VpcEndpoint"]
        self.endpoints.append(made["VpcEndpointId"])
        return made["VpcEndpointId"]

    def contents(self) -> dict[str, list[str]]:
        """Return the ids of all that EC2 has in the VPC, and the routes."""
        kinds = {
            "subnets": ("Subnets", "SubnetId"),
            "route_tables": ("RouteTables", "RouteTableId"),
            "security_groups": ("SecurityGroups", "GroupId"),
            "network_interfaces": ("NetworkInterfaces", "NetworkInterfaceId"),
            "vpc_endpoints": ("VpcEndpoints", "VpcEndpointId"),
        }
        filters = [{"Name": "vpc-id", "Values": [self.vpc]}]
        answers = {kind: getattr(self.ec2, f"describe_{kind}")(Filters=filters) for kind in kinds}
        found = {kind: sorted(one[name] for one in answers[kind][key]) for kind, (key, name) in kinds.items()}
        tables = answers["route_tables"]["RouteTables"]
        return {**found, "routes": sorted(str(sorted(route.items())) for one in tables for route in one["Routes"])}

    def delete(self) -> None:
        """Delete the VPC, which fails while anything of somebody else is in it."""
        if self.endpoints:
            self.ec2.delete_vpc_endpoints(VpcEndpointIds=self.endpoints)
        for group in self.groups:
            self.ec2.delete_security_group(GroupId=group)
        for table in (self.table, self.own_table):
            self._delete_table(table)
        for subnet in (self.head, self.workers):
            self.ec2.delete_subnet(SubnetId=subnet)
        self.ec2.delete_vpc(VpcId=self.vpc)

    def _subnet(self, block: str) -> str:
        made = self.ec2.create_subnet(VpcId=self.vpc, CidrBlock=block, AvailabilityZone="us-east-1b")
        return made["Subnet"]["SubnetId"]

    def _table(self, subnet: str) -> str:
        table = self.ec2.create_route_table(VpcId=self.vpc)["RouteTable"]["RouteTableId"]
        self.ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
        return table

    def _delete_table(self, table: str) -> None:
        (found,) = self.ec2.describe_route_tables(RouteTableIds=[table])["RouteTables"]
        for association in found["Associations"]:
            self.ec2.disassociate_route_table(AssociationId=association["RouteTableAssociationId"])
        self.ec2.delete_route_table(RouteTableId=table)


class OwnVpc(ClosedVpc):
    """A VPC where the head's subnet has a route to an internet gateway, and the workers' one to a NAT gateway."""

    def __init__(self, ec2: Any, block: str = "10.1") -> None:
        super().__init__(ec2, block)
        self.gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(InternetGatewayId=self.gateway, VpcId=self.vpc)
        self.route(self.table, GatewayId=self.gateway)
        self.address = ec2.allocate_address(Domain="vpc")["AllocationId"]
        made = ec2.create_nat_gateway(SubnetId=self.head, AllocationId=self.address)
        self.nat = made["NatGateway"]["NatGatewayId"]
        self.route(self.own_table, NatGatewayId=self.nat)

    def route(self, table: str, **target: str) -> None:
        """Give a table its default route."""
        self.ec2.create_route(RouteTableId=table, DestinationCidrBlock=EVERYWHERE, **target)

    def delete(self) -> None:
        """Delete the VPC with its gateways, which fails while anything of somebody else is in it."""
        self.ec2.delete_nat_gateway(NatGatewayId=self.nat)
        self.ec2.release_address(AllocationId=self.address)
        self.ec2.detach_internet_gateway(InternetGatewayId=self.gateway, VpcId=self.vpc)
        self.ec2.delete_internet_gateway(InternetGatewayId=self.gateway)
        super().delete()


class OwnFileSystem:
    """An EFS file system of a user with a mount target in the workers' subnet, which nobody may reach yet."""

    def __init__(self, efs: Any, own: OwnVpc) -> None:
        self.efs, self.ec2 = efs, own.ec2
        made = own.ec2.create_security_group(GroupName="files", Description="files", VpcId=own.vpc)
        self.group = made["GroupId"]
        self.id = efs.create_file_system(CreationToken="own")["FileSystemId"]
        target = efs.create_mount_target(FileSystemId=self.id, SubnetId=own.workers, SecurityGroups=[self.group])
        self.target = target["MountTargetId"]

    def delete(self) -> None:
        self.efs.delete_mount_target(MountTargetId=self.target)
        self.efs.delete_file_system(FileSystemId=self.id)
        self.ec2.delete_security_group(GroupId=self.group)
