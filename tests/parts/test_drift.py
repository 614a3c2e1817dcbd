"""What people removed by hand of a cluster's resources is named, in the API of the local cloud."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from account import ALLOW, trust
from aws_here import AwsHere
from fleet_fakes import Cloud, cloud

from phalanx.aws.inventory import drift
from phalanx.aws.model import Resource

EVERYBODY = [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Iterator[Cloud]:
    with cloud(tmp_path_factory.mktemp("cloud")) as made:
        yield made


def test_a_route_a_rule_and_a_policy_that_are_gone_are_named(local):
    ec2, iam = local.client("ec2"), local.client("iam")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    route = {"RouteTableId": table, "DestinationCidrBlock": "0.0.0.0/0"}
    ec2.create_route(**route, GatewayId=gateway)
    group = ec2.create_security_group(GroupName="head", Description="head", VpcId=vpc)["GroupId"]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=EVERYBODY)
    iam.create_role(RoleName="head", AssumeRolePolicyDocument=trust("ec2.amazonaws.com"))
    for policy in ("phalanx", "nodes"):
        iam.put_role_policy(RoleName="head", PolicyName=policy, PolicyDocument=json.dumps(ALLOW))
    ids = {"PublicRouteTable": table, "PublicRoute": "r", "HeadSecurityGroup": group, "HeadRole": "head"}
    made = [Resource(name, value, "") for name, value in {**ids, "NodePolicy": "p"}.items()]
    api = AwsHere(local.client)
    assert drift.find(api, made) == []
    assert drift.find(api, [Resource("HeadGroup", "g", "")]) == []
    ec2.delete_route(**route)
    ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=EVERYBODY)
    iam.delete_role_policy(RoleName="head", PolicyName="nodes")
    assert drift.find(api, made) == [
        f"PublicRouteTable ({table}) has lost its route to 0.0.0.0/0",
        f"security group HeadSecurityGroup ({group}) has lost its rules: it lets nothing in",
        "role head has lost a policy of its nodes' rights",
    ]
