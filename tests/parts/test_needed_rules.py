"""Each rule and route of phalanx's template is needed: without it, somebody no longer reaches what a cluster needs."""

from __future__ import annotations

import copy
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fleet_fakes import IMAGE
from plans import default_document
from stack_fakes import Stacks, stacks

from phalanx.localcloud import fleet
from phalanx.localcloud.network import reading, ruleset
from phalanx.localcloud.network.records import ALL, Interface, Network, Rule

NETWORK = ("AWS::EC2::", "AWS::EFS::")
MACHINES = ("AWS::EC2::LaunchTemplate", "AWS::EC2::VPCEndpoint")
NOTHING = [{"IpProtocol": "-1", "CidrIp": "127.0.0.2/32"}]
OUT = {"head → internet", "worker → internet"}
INSIDE = {"head → worker", "worker → head"}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.mark.parametrize(
    ("without", "lost"),
    [
        ("", set()),
        ("PublicRoute", OUT | {"user → head"}),
        ("PublicSubnetRoutes", OUT | {"user → head"}),
        ("PrivateRoute", {"worker → internet"}),
        ("PrivateSubnetRoutes", {"worker → internet"}),
        ("NodesFromNodes", INSIDE),
        ("NodesToNodes", set()),  # only EFA needs it, which asks for a rule that names the group (aws-behaviour 2.7)
        ("NodeSecurityGroup.SecurityGroupEgress", OUT | {"worker → file system"}),
        ("HeadSecurityGroup.SecurityGroupIngress", {"user → head"}),
        ("StorageSecurityGroup.SecurityGroupIngress", {"worker → file system"}),
    ],
)
def test_without_it_a_cluster_lacks_what_it_is_for(cloud: Stacks, without: str, lost: set[str]):
    cluster = Cluster.made(cloud, without)
    everything = OUT | INSIDE | {"user → head", "worker → file system"}
    assert everything - cluster.reached() == lost


@dataclass
class Cluster:
    """The network of phalanx's template, with a head and a worker."""

    network: Network
    head: Interface
    worker: Interface

    @classmethod
    def made(cls, cloud: Stacks, without: str) -> Cluster:
        document = default_document()
        resources = {n: r for n, r in document["Resources"].items() if _is_network(r)}
        stack = cloud.made(
            _remove(resources, without), sections={name: document[name] for name in ("Parameters", "Conditions")}
        )
        ids = {name: cloud.physical(stack, name) for name in resources if name.endswith(("SecurityGroup", "Subnet"))}
        head = _launch(cloud, ids["PublicSubnet"], ids["NodeSecurityGroup"], ids["HeadSecurityGroup"])
        worker = _launch(cloud, ids["PrivateSubnet"], ids["NodeSecurityGroup"])
        vpc = cloud.physical(stack, "Vpc")
        network = reading.network(cloud.context.account, vpc, fleet.current().live())
        assert network is not None
        found = {node.address: node for node in network.nodes}
        return cls(network, found[head], found[worker])

    def reached(self) -> set[str]:
        (target,) = self.network.mount_targets
        ways = {
            "head → internet": self._gets_out(self.head),
            "worker → internet": self._gets_out(self.worker),
            "head → worker": self._passes(self.head, self.worker, 7001),
            "worker → head": self._passes(self.worker, self.head, 7001),
            "worker → file system": self._passes(self.worker, target, 2049),
            "user → head": self._lets_users_in(self.head),
        }
        return {way for way, there in ways.items() if there}

    def _gets_out(self, node: Interface) -> bool:
        routed = any(route.works and (node.public or not route.to_internet) for route in node.routes)
        return routed and any(_allows(rule, 443, "198.51.100.7", ()) for rule in self._rules(node, "egress"))

    def _passes(self, source: Interface, target: Interface, port: int) -> bool:
        out = any(_allows(rule, port, target.address, target.groups) for rule in self._rules(source, "egress"))
        return out and any(
            _allows(rule, port, source.address, source.groups) for rule in self._rules(target, "ingress")
        )

    def _lets_users_in(self, node: Interface) -> bool:
        listed = "set public {\ntype ipv4_addr\nelements = { " + node.address in ruleset.text(self.network)
        return listed and any(_allows(rule, 22, "127.0.0.1", ()) for rule in self._rules(node, "ingress"))

    def _rules(self, interface: Interface, direction: str) -> list[Rule]:
        return [rule for group in interface.groups for rule in getattr(self.network.groups[group], direction)]


def _is_network(resource: dict[str, Any]) -> bool:
    return resource["Type"].startswith(NETWORK) and resource["Type"] not in MACHINES


def _remove(resources: dict[str, Any], without: str) -> dict[str, Any]:
    """Return the resources without one of them, or with a security group's rules replaced by one for nobody."""
    left = copy.deepcopy(resources)
    name, _, rules = without.partition(".")
    if rules:
        left[name]["Properties"][rules] = NOTHING
    else:
        left.pop(name, None)
    for resource in left.values():
        if resource.get("DependsOn") == name:
            del resource["DependsOn"]
    return left


def _launch(cloud: Stacks, subnet: str, *groups: str) -> str:
    asked = {"ImageId": IMAGE, "MinCount": 1, "MaxCount": 1, "InstanceType": "c5.large", "SubnetId": subnet}
    made = cloud.client("ec2").run_instances(SecurityGroupIds=list(groups), **asked)
    return made["Instances"][0]["PrivateIpAddress"]


def _allows(rule: Rule, port: int, address: str, groups: tuple[str, ...]) -> bool:
    """Whether the rule allows TCP on this port to or from this address, which has these groups."""
    serves = rule.protocol == ALL or (rule.protocol == "tcp" and (rule.first or 0) <= port <= (rule.last or 65535))
    named = any(ipaddress.ip_address(address) in ipaddress.ip_network(block) for block in rule.networks)
    return serves and (named or bool(set(groups) & set(rule.groups)))
