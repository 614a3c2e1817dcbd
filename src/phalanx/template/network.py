"""The cluster's VPC, in one zone: a public subnet for the head and the NAT gateway, a private one for the workers.

With private access, one private subnet has all nodes, and endpoints are the only way out. In an existing VPC only the
head's address is made, or the endpoints that it lacks, and parameters have the names of the VPC and of its subnets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from troposphere import AWSObject, GetAtt, Ref, Sub, Template, ec2

from phalanx.plan import vpc_endpoints
from phalanx.plan.existing_vpc import ExistingVpc
from phalanx.plan.plan import Plan
from phalanx.plan.subnets import NewNetwork
from phalanx.plan.vpc_endpoints import ENDPOINTS
from phalanx.template.naming import name_tag

ANYWHERE = "0.0.0.0/0"
_HTTPS = 443
# No document says that the streams of logins can be bound, and without them nobody gets in (aws-behaviour 2.60).
_UNBOUND = ("ssmmessages",)
# Buckets of AWS that other principals write to, or anybody reads (docs/aws-behaviour.md 1.40, 2.61).
_SIGNALS = "cloudformation-waitcondition-${AWS::Region}"
_PACKAGES = "al2023-repos-${AWS::Region}-de612dc2"


def add_to(template: Template, plan: Plan) -> None:
    for resource in _resources(plan):
        template.add_resource(resource)


def _resources(plan: Plan) -> Sequence[AWSObject]:
    if plan.facts.vpc:
        return _lacking(plan, plan.facts.vpc) if plan.spec.is_private else [head_address()]
    return _new_private(plan) if plan.spec.is_private else _new(plan.network)


def dependencies(plan: Plan) -> tuple[str, ...]:
    """Return what of the network a node needs before it boots, and does not refer to."""
    # A new gateway endpoint breaks open connections to its service (docs/aws-behaviour.md 2.32).
    interfaces = tuple(map(_title, plan.endpoints))
    if plan.facts.vpc:
        return (*interfaces, *endpoint_titles(vpc_endpoints.made_gateways(plan.spec, plan.facts.vpc)).values())
    if plan.spec.is_private:
        return ("PrivateSubnetRoutes", *ENDPOINTS, *interfaces)
    return ("PrivateRoute", "PrivateSubnetRoutes", "PublicRoute", "PublicSubnetRoutes", *ENDPOINTS)


def endpoint_titles(services: Iterable[str]) -> dict[str, str]:
    """Return the titles of the endpoints of these services."""
    gateways = {service: title for title, service in ENDPOINTS.items()}
    return {service: gateways.get(service) or _title(service) for service in services}


def head_subnet(plan: Plan) -> str:
    """Return the title of the subnet that the head is in."""
    if not plan.spec.is_private:
        return "PublicSubnet"
    return "HeadSubnet" if plan.facts.vpc and len(plan.facts.vpc.subnets) > 1 else "PrivateSubnet"


def head_address(**after: Any) -> ec2.EIP:
    return ec2.EIP("HeadAddress", Domain="vpc", **after)


def _new(blocks: NewNetwork) -> tuple[AWSObject, ...]:
    ends = endpoints("PublicRouteTable", "PrivateRouteTable")
    return (*vpc(blocks.vpc), *public(blocks.public), *_private(blocks.private), *ends)


def vpc(cidr: str) -> tuple[AWSObject, ...]:
    return (
        _vpc(cidr),
        ec2.InternetGateway("InternetGateway"),
        ec2.VPCGatewayAttachment("GatewayAttachment", VpcId=Ref("Vpc"), InternetGatewayId=Ref("InternetGateway")),
    )


def _vpc(cidr: str) -> ec2.VPC:
    # The names of the file system and of endpoints resolve only with both DNS settings; the other is on by default
    # (docs/aws-behaviour.md 2.53, 4.5).
    return ec2.VPC("Vpc", CidrBlock=cidr, EnableDnsHostnames=True, Tags=name_tag())


def _new_private(plan: Plan) -> tuple[AWSObject, ...]:
    return (
        _vpc(plan.network.vpc),
        *_private_subnet(plan.network.private),
        *endpoints("PrivateRouteTable", is_bound=True),
        *_interfaces(plan, [{"SourceSecurityGroupId": Ref("NodeSecurityGroup")}]),
    )


def _lacking(plan: Plan, vpc: ExistingVpc) -> tuple[AWSObject, ...]:
    """Make the endpoints that an existing VPC lacks, open to all of it: its other instances have to use them, too."""
    gateways = vpc_endpoints.made_gateways(plan.spec, vpc)
    titles = endpoint_titles(gateways)
    return (
        *(_gateway(titles[service], service, tables) for service, tables in gateways.items()),
        *_interfaces(plan, [{"CidrIp": block} for block in vpc.blocks]),
    )


def _interfaces(plan: Plan, peers: Sequence[dict[str, Any]]) -> list[AWSObject]:
    """Make the interface endpoints, and the security group that lets these peers in."""
    if not plan.endpoints:
        return []
    way = {"IpProtocol": "tcp", "FromPort": _HTTPS, "ToPort": _HTTPS, "Description": "HTTPS"}
    group = ec2.SecurityGroup(
        "EndpointSecurityGroup",
        VpcId=Ref("Vpc"),
        GroupDescription="HTTPS to endpoints",
        SecurityGroupIngress=[ec2.SecurityGroupRule(**way, **peer) for peer in peers],
        SecurityGroupEgress=[nothing()],
    )
    is_bound = plan.facts.vpc is None
    return [group, *(_interface(service, is_bound) for service in plan.endpoints)]


def nothing() -> ec2.SecurityGroupRule:
    """Allow nothing: EC2 gives a group without egress rules one that allows everything."""
    return ec2.SecurityGroupRule(IpProtocol="-1", CidrIp="127.0.0.1/32", Description="None")


def _interface(service: str, is_bound: bool) -> ec2.VPCEndpoint:
    """Make an interface endpoint, whose addresses take the place of the service's own name (aws-behaviour 2.53)."""
    return ec2.VPCEndpoint(
        _title(service),
        VpcId=Ref("Vpc"),
        ServiceName=_service(service),
        VpcEndpointType="Interface",
        PrivateDnsEnabled=True,
        SubnetIds=[Ref("PrivateSubnet")],
        SecurityGroupIds=[Ref("EndpointSecurityGroup")],
        **(_bounded(service) if is_bound else {}),
    )


def _title(service: str) -> str:
    return f"{service.capitalize()}Endpoint"


def _service(service: str) -> Sub:
    return Sub(f"com.amazonaws.${{AWS::Region}}.{service}")


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
        head_address(DependsOn="GatewayAttachment"),
    )


def _private(cidr: str) -> tuple[AWSObject, ...]:
    return (
        *_private_subnet(cidr),
        ec2.EIP("NatAddress", Domain="vpc", DependsOn="GatewayAttachment"),
        ec2.NatGateway("NatGateway", AllocationId=GetAtt("NatAddress", "AllocationId"), SubnetId=Ref("PublicSubnet")),
        ec2.Route(
            "PrivateRoute",
            RouteTableId=Ref("PrivateRouteTable"),
            DestinationCidrBlock=ANYWHERE,
            NatGatewayId=Ref("NatGateway"),
        ),
    )


def _private_subnet(cidr: str) -> tuple[AWSObject, ...]:
    return (
        _subnet("PrivateSubnet", cidr),
        ec2.RouteTable("PrivateRouteTable", VpcId=Ref("Vpc")),
        _routes("PrivateSubnetRoutes", "PrivateSubnet", "PrivateRouteTable"),
    )


def endpoints(*tables: str, is_bound: bool = False) -> tuple[ec2.VPCEndpoint, ...]:
    """Make the gateway endpoints, which cost nothing: the NAT gateway costs by the GB (docs/aws-behaviour.md 2.32)."""
    return tuple(
        _gateway(title, service, [Ref(table) for table in tables], **(_bounded(service) if is_bound else {}))
        for title, service in ENDPOINTS.items()
    )


def _gateway(title: str, service: str, tables: Sequence[Any], **policy: Any) -> ec2.VPCEndpoint:
    return ec2.VPCEndpoint(title, VpcId=Ref("Vpc"), ServiceName=_service(service), RouteTableIds=list(tables), **policy)


def _subnet(title: str, cidr: str, **more: Any) -> ec2.Subnet:
    return ec2.Subnet(title, CidrBlock=cidr, VpcId=Ref("Vpc"), AvailabilityZone=Ref("Zone"), **more)


def _routes(title: str, subnet: str, routes: str) -> ec2.SubnetRouteTableAssociation:
    return ec2.SubnetRouteTableAssociation(title, SubnetId=Ref(subnet), RouteTableId=Ref(routes))


def _bounded(service: str) -> dict[str, Any]:
    """Return the properties with which only principals of its own account may call the service through an endpoint.

    A job with keys of another account could otherwise carry data there. Endpoints in an existing VPC have AWS's own
    policy, because they serve others, too.
    """
    if service in _UNBOUND:
        return {}
    buckets = [_objects("s3:PutObject", _SIGNALS), _objects("s3:GetObject", _PACKAGES)] if service == "s3" else []
    return {"PolicyDocument": {"Version": "2012-10-17", "Statement": [_own_account(), *buckets]}}


def _own_account() -> dict[str, Any]:
    only = {"StringEquals": {"aws:PrincipalAccount": Ref("AWS::AccountId")}}
    return {**_allow("*", "*"), "Condition": only}


def _objects(action: str, bucket: str) -> dict[str, Any]:
    return _allow(action, Sub(f"arn:${{AWS::Partition}}:s3:::{bucket}/*"))


def _allow(action: str, resource: str | Sub) -> dict[str, Any]:
    # A gateway endpoint's policy has to name all principals, and binds them by conditions (docs/aws-behaviour.md 2.60).
    return {"Effect": "Allow", "Principal": "*", "Action": action, "Resource": resource}
