"""Each endpoint of a private cluster's document is needed: without it, nodes no longer reach its service."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from clusters import plan
from fleet_fakes import IMAGE
from stack_fakes import Stacks, stacks

from localcloud.ec2 import fleet
from localcloud.network import reach, reading
from phalanx.template import synthesize

DOCUMENT = json.loads(synthesize(plan(network={"access": "private"})))
ENDPOINTS = {
    title: one["Properties"]["ServiceName"]["Fn::Sub"].rpartition(".")[2]
    for title, one in DOCUMENT["Resources"].items()
    if one["Type"] == "AWS::EC2::VPCEndpoint"
}
NOTHING = [{"IpProtocol": "-1", "CidrIp": "127.0.0.2/32"}]
INTERFACES = {service for service in ENDPOINTS.values() if service not in ("dynamodb", "s3")}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running


def lost(cloud: Stacks, without: str) -> set[str]:
    """Return the services that a node does not reach where this resource, or this property of it, is missing."""
    found = {n: copy.deepcopy(r) for n, r in DOCUMENT["Resources"].items() if r["Type"].startswith("AWS::EC2::")}
    found = {name: one for name, one in found.items() if one["Type"] != "AWS::EC2::LaunchTemplate"}
    _remove(found, *without.split("."))
    parameters = {name: one for name, one in DOCUMENT["Parameters"].items() if not name.startswith("Agent")}
    sections = {"Parameters": parameters, "Conditions": DOCUMENT["Conditions"]}
    stack = cloud.made(found, sections=sections)
    where = {"SubnetId": cloud.physical(stack, "PrivateSubnet")}
    groups = [cloud.physical(stack, "NodeSecurityGroup")]
    asked = {"ImageId": IMAGE, "MinCount": 1, "MaxCount": 1, "InstanceType": "c5.large", "SecurityGroupIds": groups}
    (node,) = cloud.client("ec2").run_instances(**asked, **where)["Instances"]
    network = reading.network(cloud.context.account, cloud.physical(stack, "Vpc"), fleet.current().live())
    assert network is not None
    return {one for one in ENDPOINTS.values() if reach.way(network, node["PrivateIpAddress"], one) is None}


def _remove(resources: dict[str, Any], name: str, part: str = "") -> None:
    if part in ("SecurityGroupIngress", "SecurityGroupEgress"):
        resources[name]["Properties"][part] = NOTHING
    elif part:
        del resources[name]["Properties"][part]
    else:
        resources.pop(name, None)


def test_with_all_of_them_every_service_is_reached(cloud: Stacks):
    assert lost(cloud, "none") == set()
    assert len(ENDPOINTS) == 11


@pytest.mark.parametrize("title", ENDPOINTS)
def test_without_one_its_service_alone_is_lost(cloud: Stacks, title: str):
    assert lost(cloud, title) == {ENDPOINTS[title]}


@pytest.mark.parametrize(
    ("without", "services"),
    [
        ("EndpointSecurityGroup.SecurityGroupIngress", INTERFACES),
        ("PrivateSubnetRoutes", {"dynamodb", "s3"}),
        ("SqsEndpoint.PrivateDnsEnabled", {"sqs"}),
        ("SqsEndpoint.SecurityGroupIds", {"sqs"}),
        ("SqsEndpoint.SubnetIds", {"sqs"}),
        ("NodeSecurityGroup.SecurityGroupEgress", {"dynamodb", "s3", *INTERFACES}),
    ],
)
def test_so_is_each_part_of_the_way(cloud: Stacks, without: str, services: set[str]):
    assert lost(cloud, without) == services
