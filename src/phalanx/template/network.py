"""The cluster's VPC, in one zone: a public subnet for the head and the NAT gateway, a private one for the workers.

In an existing VPC only the head's address is made, and parameters have the names of the VPC and of its subnets.
"""

from __future__ import annotations

from typing import Any

from troposphere import AWSObject, GetAtt, Ref, Sub, Template, ec2

from phalanx.plan.plan import Plan
from phalanx.plan.subnets import NewNetwork
from phalanx.template.naming import name_tag

ANYWHERE = "0.0.0.0/0"
ENDPOINTS = {"S3Endpoint": "s3", "DynamoDBEndpoint": "dynamodb"}
"""The gateway endpoints and the services that they lead to; their names are the same in all partitions."""


def add_to(template: Template, plan: Plan) -> None:
    for resource in [_head_address()] if plan.facts.vpc else _new(plan.network):
        template.add_resource(resource)


def dependencies(plan: Plan) -> tuple[str, ...]:
    """Return what of the network a node needs before it boots, and does not refer to."""
    # A new gateway endpoint breaks open connections to its service (docs/aws-behaviour.md 2.32).
    made = ("PrivateRoute", "PrivateSubnetRoutes", "PublicRoute", "PublicSubnetRoutes", *ENDPOINTS)
    return () if plan.facts.vpc else made


def _head_address(**after: Any) -> ec2.EIP:
    return ec2.EIP("HeadAddress", Domain="vpc", **after)


def _new(blocks: NewNetwork) -> tuple[AWSObject, ...]:
    ends = endpoints("PublicRouteTable", "PrivateRouteTable")
    return (*vpc(blocks.vpc), *public(blocks.public), *_private(blocks.private), *ends)


def vpc(cidr: str) -> tuple[AWSObject, ...]:
    return (
        # The file system's name resolves only with both DNS settings; the other is on by default (aws-behaviour 4.5).
        ec2.VPC("Vpc", CidrBlock=cidr, EnableDnsHostnames=True, Tags=name_tag()),
        ec2.InternetGateway("InternetGateway"),
        ec2.VPCGatewayAttachment("GatewayAttachment", VpcId=Ref("Vpc"), InternetGatewayId=Ref("InternetGateway")),
    )


def public(cidr: str) -> tuple[AWSObject, ...]:
    # A head has an address from its launch, so that it can take its Elastic IP itself. EC2 refuses that for an instance
    # with several interfaces (docs/aws-behaviour.md 2.9, 2.10); ours have one.
    return (
        _subnet("PublicSubnet", cidr, MapPublicIpOnLaunch=True),
        ec2.RouteTable("PublicRouteTable", VpcId=Ref("Vpc")),
        ec2.Route(
            "PublicRoute",
            RouteTableId=Ref("PublicRouteTable"),
            DestinationCidrBlock=ANYWHERE,
            GatewayId=Ref("InternetGateway"),
            DependsOn="GatewayAttachment",
        ),
        _routes("PublicSubnetRoutes", "PublicSubnet", "PublicRouteTable"),
        # A gateway with mapped addresses can't be detached, so they are deleted before the attachment.
        _head_address(DependsOn="GatewayAttachment"),
    )


def _private(cidr: str) -> tuple[AWSObject, ...]:
    return (
        _subnet("PrivateSubnet", cidr),
        ec2.EIP("NatAddress", Domain="vpc", DependsOn="GatewayAttachment"),
        ec2.NatGateway("NatGateway", AllocationId=GetAtt("NatAddress", "AllocationId"), SubnetId=Ref("PublicSubnet")),
        ec2.RouteTable("PrivateRouteTable", VpcId=Ref("Vpc")),
        ec2.Route(
            "PrivateRoute",
            RouteTableId=Ref("PrivateRouteTable"),
            DestinationCidrBlock=ANYWHERE,
            NatGatewayId=Ref("NatGateway"),
        ),
        _routes("PrivateSubnetRoutes", "PrivateSubnet", "PrivateRouteTable"),
    )


def endpoints(*tables: str) -> tuple[ec2.VPCEndpoint, ...]:
    """Make the gateway endpoints, which cost nothing: the NAT gateway costs by the GB (docs/aws-behaviour.md 2.32)."""
    return tuple(
        ec2.VPCEndpoint(
            title,
            VpcId=Ref("Vpc"),
            ServiceName=Sub(f"com.amazonaws.${{AWS::Region}}.{service}"),
            RouteTableIds=[Ref(table) for table in tables],
        )
        for title, service in ENDPOINTS.items()
    )


def _subnet(title: str, cidr: str, **more: Any) -> ec2.Subnet:
    return ec2.Subnet(title, CidrBlock=cidr, VpcId=Ref("Vpc"), AvailabilityZone=Ref("Zone"), **more)


def _routes(title: str, subnet: str, routes: str) -> ec2.SubnetRouteTableAssociation:
    return ec2.SubnetRouteTableAssociation(title, SubnetId=Ref(subnet), RouteTableId=Ref(routes))
