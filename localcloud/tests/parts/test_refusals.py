"""The local cloud refuses what AWS refuses, with AWS's own error codes: the requests in data/refusals.yaml."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import account
import botocore.session
import pytest
import yaml
from botocore.exceptions import ClientError
from stack_fakes import Stacks

TABLE = yaml.safe_load((Path(__file__).parents[1] / "data/refusals.yaml").read_text())


@pytest.fixture(scope="module")
def furnished(cloud: Stacks) -> dict[str, Any]:
    return account.furnished(cloud)


@pytest.fixture(scope="module")
def clients(cloud: Stacks) -> dict[str, Any]:
    return {service: cloud.plain_client(service) for service in TABLE["sources"]}


@pytest.mark.parametrize("case", TABLE["refusals"], ids=lambda case: f"{case[0]}: {case[2]}")
def test_a_request_that_aws_refuses_is_refused_with_its_code(clients, furnished, case):
    (service, _, operation), given, code = case[0].partition("."), *case[1:]
    error = account.refused(clients[service], operation, given, furnished)
    assert error.get("Code", "") == code
    # Systems Manager names no parameter.
    assert error["Message"] or code == "ParameterNotFound"
    assert not re.search(r"[{\['(]'|None\b", error["Message"].replace("''", "")), error


def test_networks_are_kept_in_their_canonical_form(clients):
    # docs/aws-behaviour.md 2.82
    ec2 = clients["ec2"]
    vpc = ec2.create_vpc(CidrBlock="10.77.1.9/16")["Vpc"]
    assert vpc["CidrBlock"] == "10.77.0.0/16"
    subnet = ec2.create_subnet(VpcId=vpc["VpcId"], CidrBlock="10.77.4.77/24")["Subnet"]
    assert subnet["CidrBlock"] == "10.77.4.0/24"
    group = ec2.create_security_group(GroupName="canonical", Description="-", VpcId=vpc["VpcId"])["GroupId"]
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    wide, canonical = ({**rule, "IpRanges": [{"CidrIp": text}]} for text in ("100.68.0.18/18", "100.68.0.0/18"))
    (made,) = ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[wide])["SecurityGroupRules"]
    assert made["CidrIpv4"] == "100.68.0.0/18"
    with pytest.raises(ClientError, match=r"InvalidPermission\.Duplicate"):
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[canonical])
    ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=[wide])
    assert ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"] == []
    table = ec2.create_route_table(VpcId=vpc["VpcId"])["RouteTable"]["RouteTableId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc["VpcId"])
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="192.0.2.77/24", GatewayId=gateway)
    (found,) = ec2.describe_route_tables(RouteTableIds=[table])["RouteTables"]
    assert "192.0.2.0/24" in [route["DestinationCidrBlock"] for route in found["Routes"]]
    ec2.delete_route(RouteTableId=table, DestinationCidrBlock="192.0.2.99/24")


def test_key_pairs_are_found_by_their_ids(clients):
    ec2 = clients["ec2"]
    made = {name: ec2.create_key_pair(KeyName=name)["KeyPairId"] for name in ("by-id", "not-by-id")}
    (found,) = ec2.describe_key_pairs(KeyPairIds=[made["by-id"]])["KeyPairs"]
    assert found["KeyName"] == "by-id"


def test_the_table_is_long_and_every_row_has_its_source():
    model = functools.cache(botocore.session.get_session().get_service_model)
    sources = [_source(model(case[0].partition(".")[0]), case) for case in TABLE["refusals"]]
    assert all(source.startswith("https://docs.aws.amazon.com/") for source in sources)
    own = [case for case, source in zip(TABLE["refusals"], sources, strict=True) if _names_operation(source, case)]
    assert len(own) >= 100
    assert {case[0].partition(".")[0] for case in own} == set(TABLE["pages"])
    assert {case[0].partition(".")[0] for case in TABLE["refusals"]} == set(TABLE["sources"])


def _source(model: Any, case: list[Any]) -> str:
    """Return the operation's page if it lists the error, as AWS's model behind the page does; else the service's."""
    (service, _, operation), code = case[0].partition("."), case[2]
    described = model.operation_model(operation)
    name = TABLE["names"].get(code, code)
    listed = {text for error in described.error_shapes for text in (error.name, error.error_code)}
    if service in TABLE["pages"] and (name in listed or name in described.documentation):
        return TABLE["pages"][service].format(operation=operation)
    return TABLE["sources"][service]


def _names_operation(source: str, case: list[Any]) -> bool:
    return source.endswith(f"/API_{case[0].partition('.')[2]}.html")
