"""Each rule and route of phalanx's documents is needed: without it, somebody no longer reaches what a cluster needs.

Endpoints, and what leads to them, are in test_needed_endpoints.py.
"""

from __future__ import annotations

import copy
import functools
import ipaddress
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from clusters import FACTS, plan
from fleet_fakes import IMAGE
from plans import EMR, PLANS, default_document
from stack_fakes import Stacks, stacks

from localcloud.ec2 import fleet
from localcloud.network import reading, ruleset
from localcloud.network.records import ALL, Interface, Network, Rule
from phalanx.plan.existing_vpc import INTERNET, NAT, ExistingVpc, Subnet
from phalanx.plan.lustre_storage import LustreFileSystem
from phalanx.plan.mount_targets import MountTarget
from phalanx.template import synthesize

NETWORK = ("AWS::EC2::", "AWS::EFS::")
MACHINES = ("AWS::EC2::LaunchTemplate", "AWS::EC2::VPCEndpoint")
NOTHING = {"IpProtocol": "-1", "CidrIp": "127.0.0.2/32"}
LISTS = ("SecurityGroupIngress", "SecurityGroupEgress")
SINGLE = ("Route", "SubnetRouteTableAssociation", "SecurityGroupIngress", "SecurityGroupEgress")
OUT = {"head → internet", "worker → internet"}
INSIDE = {"head → worker", "worker → head"}
NFS = {2049: {"worker → file system"}}
LUSTRE = {
    port: {f"{way} {port}" for way in ("worker → servers", "servers → worker", "servers → servers")}
    for port in (988, 1018, 1023)
}
# It stands for a group of the user's, who made what else it allows.
THEIRS = "TheirSecurityGroup"
SUBNET = Subnet("subnet-0000000a", "vpc-1", "us-east-1b", "10.1.0.0/28", 11, INTERNET)
VPC = ExistingVpc(SUBNET.vpc, True, True, SUBNET, replace(SUBNET, subnet_id="subnet-0000000b", way_out=NAT))
OWN = "fs-0123456789abcdef0"


def own(**found: Any) -> dict[str, Any]:
    """Return the document of a cluster in the user's VPC, with that VPC and the group of the user's file system."""
    facts = replace(FACTS, zones=(SUBNET.zone,), vpc=VPC, **found)
    network = {"head_subnet": VPC.head.subnet_id, "worker_subnet": VPC.workers.subnet_id}
    kind = {"storage": "lustre"} if "lustre" in found else {}
    text = synthesize(plan(facts, network=network, file_system=OWN, nodes=2, min=1, **kind))
    document = json.loads(text.replace(json.dumps(THEIRS), json.dumps({"Ref": THEIRS})))
    vpc = {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.1.0.0/16"}}
    subnets = {
        name: {"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": {"Ref": "Vpc"}, "CidrBlock": block}}
        for name, block in {"PublicSubnet": "10.1.0.0/24", "PrivateSubnet": "10.1.1.0/24"}.items()
    }
    group = {"GroupDescription": "Theirs", "VpcId": {"Ref": "Vpc"}}
    theirs = {THEIRS: {"Type": "AWS::EC2::SecurityGroup", "Properties": group}}
    for name in ("Vpc", *subnets):
        del document["Parameters"][name]
    return {**document, "Resources": {**document["Resources"], "Vpc": vpc, **subnets, **theirs}}


DOCUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "efs": default_document,
    "head": lambda: json.loads(synthesize(plan(storage="head"))),
    "lustre": lambda: json.loads(synthesize(PLANS["lustre"])),
    "private": lambda: json.loads(synthesize(PLANS["private"])),
    "emr": lambda: json.loads(synthesize(EMR)),
    "own efs": lambda: own(mount_targets=(MountTarget(SUBNET.zone, VPC.vpc, (THEIRS,)),)),
    "own lustre": lambda: own(lustre=LustreFileSystem("AVAILABLE", "fs.example", "abc", VPC.vpc, (THEIRS,))),
}


def document(kind: str) -> dict[str, Any]:
    """Return one without the agent's texts, which `up` sends as values: with them it is too large for a request."""
    found = DOCUMENTS[kind]()
    for name, parameter in found["Parameters"].items():
        if name.startswith("Agent"):
            parameter["Default"] = ""
    return found


USERS = {"emr": "203.0.113.7"}
SERVERS = {"lustre": "StorageSecurityGroup", "own efs": THEIRS, "own lustre": THEIRS}
NODES = {
    "NodesFromNodes": INSIDE | {"EFA"},
    "NodesToNodes": {"EFA"},
    "NodeSecurityGroup.SecurityGroupEgress.0": OUT,
    "HeadSecurityGroup.SecurityGroupIngress.0": {"user → head"},
}
HEAD = {
    "PublicRoute": OUT | {"user → head"},
    "PublicSubnetRoutes": OUT | {"user → head"},
    "PublicSubnet.MapPublicIpOnLaunch": {"head → internet", "user → head"},
}
NEW = {
    **NODES,
    **HEAD,
    "PrivateRoute": {"worker → internet"},
    "PrivateSubnetRoutes": {"worker → internet"},
}
EFS = {
    "NodeSecurityGroup.SecurityGroupEgress.0": OUT | NFS[2049],
    "StorageSecurityGroup.SecurityGroupIngress.0": NFS[2049],
}


def of_lustre(way: str) -> list[set[str]]:
    """Return what is lost without a rule for this way: for port 988, and for ports 1018 to 1023."""
    return [{f"{way} 988"}, {f"{way} 1018", f"{way} 1023"}]


FROM_NODES, TO_NODES, AMONG = map(of_lustre, ("worker → servers", "servers → worker", "servers → servers"))
TO_SERVERS = {f"worker → servers {port}" for port in LUSTRE}
LOST: dict[str, dict[str, set[str]]] = {
    "efs": {**NEW, **EFS},
    "head": NEW,
    "lustre": {
        **NEW,
        "NodeSecurityGroup.SecurityGroupEgress.0": OUT | TO_SERVERS,
        "Servers988": AMONG[0],
        "Servers1018": AMONG[1],
        "NodesFromServers988": TO_NODES[0],
        "NodesFromServers1018": TO_NODES[1],
        "StorageSecurityGroup.SecurityGroupIngress.0": FROM_NODES[0],
        "StorageSecurityGroup.SecurityGroupIngress.1": FROM_NODES[1],
        "StorageSecurityGroup.SecurityGroupEgress.0": TO_NODES[0] | AMONG[0],
        "StorageSecurityGroup.SecurityGroupEgress.1": TO_NODES[1] | AMONG[1],
    },
    "private": {
        "NodesFromNodes": INSIDE | {"EFA"},
        "NodesToNodes": {"EFA"},
        "NodeSecurityGroup.SecurityGroupEgress.0": NFS[2049],
        "StorageSecurityGroup.SecurityGroupIngress.0": NFS[2049],
        # See test_needed_endpoints.py.
        "EndpointSecurityGroup.SecurityGroupIngress.0": set(),
        "PrivateSubnetRoutes": set(),
    },
    "emr": {
        **NODES,
        **HEAD,
        **EFS,
        "PublicSubnet.MapPublicIpOnLaunch": OUT | {"user → head"},
    },
    "own efs": {
        **NODES,
        "NodeSecurityGroup.SecurityGroupEgress.0": NFS[2049],
        "NfsFromNodes": NFS[2049],
    },
    "own lustre": {
        **NODES,
        "NodeSecurityGroup.SecurityGroupEgress.0": TO_SERVERS,
        "ServersFromNodes988": FROM_NODES[0],
        "ServersFromNodes1018": FROM_NODES[1],
        "NodesFromServers988": TO_NODES[0],
        "NodesFromServers1018": TO_NODES[1],
    },
}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running


def parts(document: dict[str, Any]) -> set[str]:
    """Return all that lets packets through: routes, gateways, and each rule of each security group."""
    found = set()
    for name, resource in document["Resources"].items():
        properties, kind = resource.get("Properties", {}), resource["Type"].rpartition(":")[2]
        if kind in SINGLE:
            found.add(name)
        found |= {f"{name}.{key}" for key in ("MapPublicIpOnLaunch",) if key in properties}
        for key in LISTS:
            rules = enumerate(properties.get(key, ()))
            found |= {f"{name}.{key}.{number}" for number, rule in rules if rule.get("Description") != "None"}
    return found


@pytest.mark.parametrize("kind", LOST)
def test_all_parts_of_the_documents_are_looked_at(kind: str):
    assert parts(document(kind)) == LOST[kind].keys()


@pytest.mark.parametrize("kind", LOST)
def test_with_all_of_them_a_cluster_has_what_it_needs(cloud: Stacks, kind: str):
    assert Cluster.made(cloud, kind, "").reached() == ways(kind)


@pytest.mark.parametrize(("kind", "without"), [(kind, part) for kind in LOST for part in LOST[kind]])
def test_without_it_a_cluster_lacks_what_it_is_for(cloud: Stacks, kind: str, without: str):
    assert ways(kind) - Cluster.made(cloud, kind, without).reached() == LOST[kind][without]


@pytest.mark.parametrize("kind", ["efs", "emr"])
def test_without_its_gateway_a_network_is_not_made(cloud: Stacks, kind: str):
    resources = {n: r for n, r in document(kind)["Resources"].items() if _is_network(r)}
    stack = cloud.create(_remove(resources, "GatewayAttachment"), sections=sections(kind))
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert "different networks" in cloud.reason(stack, "PublicRoute", "CREATE_FAILED")


def sections(kind: str) -> dict[str, Any]:
    """Return what the resources of a document refer to."""
    return {name: document(kind)[name] for name in ("Parameters", "Conditions")}


def ways(kind: str) -> set[str]:
    """Return all ways that a cluster of this kind needs."""
    return set().union(INSIDE, {"EFA"}, *LOST[kind].values())


def _without_key(resource: dict[str, Any]) -> dict[str, Any]:
    properties = {name: value for name, value in resource.get("Properties", {}).items() if name != "KmsKeyId"}
    return {**resource, "Properties": properties} if properties else resource


@dataclass
class Cluster:
    """The network of one of phalanx's documents, with a head, two workers, and two servers of its file system."""

    kind: str
    network: Network
    head: Interface
    worker: Interface
    servers: tuple[Interface, ...]

    @classmethod
    def made(cls, cloud: Stacks, kind: str, without: str) -> Cluster:
        resources = {n: _without_key(r) for n, r in document(kind)["Resources"].items() if _is_network(r)}
        stack = cloud.made(_remove(resources, without), sections=sections(kind))
        physical = functools.partial(cloud.physical, stack)
        of_nodes = physical("NodeSecurityGroup")
        of_head = [physical("HeadSecurityGroup")] if "HeadSecurityGroup" in resources else []
        private = physical("PrivateSubnet" if "PrivateSubnet" in resources else "PublicSubnet")
        head = _launch(cloud, physical("PublicSubnet") if of_head else private, of_nodes, *of_head)
        worker = _launch(cloud, private, of_nodes)
        servers = [_launch(cloud, private, physical(SERVERS[kind])) for _ in "ab"] if kind in SERVERS else []
        network = reading.network(cloud.context.account, physical("Vpc"), fleet.current().live())
        assert network is not None
        found = {node.address: node for node in network.nodes}
        return cls(
            kind, network, found[head], found[worker], (*network.mount_targets, *(found[one] for one in servers))
        )

    def reached(self) -> set[str]:
        found = {
            "head → internet": self._gets_out(self.head),
            "worker → internet": self._gets_out(self.worker),
            "head → worker": self._passes(self.head, self.worker, 7001),
            "worker → head": self._passes(self.worker, self.head, 7001),
            "EFA": self._has_efa(self.worker),
            "user → head": self._lets_users_in(self.head),
            **self._reaches_files(),
        }
        return {way for way, there in found.items() if there}

    def _reaches_files(self) -> dict[str, bool]:
        if not self.servers:
            return {}
        found = {"worker → file system": self._passes(self.worker, self.servers[0], 2049)}
        for port in LUSTRE:
            found[f"worker → servers {port}"] = self._passes(self.worker, self.servers[0], port)
            found[f"servers → worker {port}"] = self._passes(self.servers[0], self.worker, port)
            found[f"servers → servers {port}"] = self._passes(self.servers[0], self.servers[-1], port)
        return found

    def _has_efa(self, node: Interface) -> bool:
        """Whether everything is allowed both ways by rules that name the group, as EFA needs (aws-behaviour 2.7)."""
        directions = (self._rules(node, "ingress"), self._rules(node, "egress"))
        return all(any(r.protocol == ALL and set(r.groups) & set(node.groups) for r in rules) for rules in directions)

    def _gets_out(self, node: Interface) -> bool:
        routed = any(route.works and (node.public or not route.to_internet) for route in node.routes)
        return routed and any(_allows(rule, 443, "198.51.100.7", ()) for rule in self._rules(node, "egress"))

    def _passes(self, source: Interface, target: Interface, port: int) -> bool:
        out = any(_allows(rule, port, target.address, target.groups) for rule in self._rules(source, "egress"))
        return out and any(
            _allows(rule, port, source.address, source.groups) for rule in self._rules(target, "ingress")
        )

    def _lets_users_in(self, node: Interface) -> bool:
        # In the user's VPC, the launch gives the head its public address, and a gateway is the user's.
        listed = self.kind.startswith(
            "own"
        ) or "set public {\ntype ipv4_addr\nelements = { " + node.address in ruleset.text(self.network)
        return listed and any(
            _allows(rule, 22, USERS.get(self.kind, "127.0.0.1"), ()) for rule in self._rules(node, "ingress")
        )

    def _rules(self, interface: Interface, direction: str) -> list[Rule]:
        return [rule for group in interface.groups for rule in getattr(self.network.groups[group], direction)]


def _is_network(resource: dict[str, Any]) -> bool:
    return resource["Type"].startswith(NETWORK) and resource["Type"] not in MACHINES


def _remove(resources: dict[str, Any], without: str) -> dict[str, Any]:
    """Return the resources without one of them or of its properties, or with a rule replaced by one for nobody."""
    left = copy.deepcopy(resources)
    name, _, part = without.partition(".")
    key, _, number = part.partition(".")
    if number:
        left[name]["Properties"][key][int(number)] = NOTHING
    elif key:
        del left[name]["Properties"][key]
    else:
        left.pop(name, None)
    for resource in left.values():
        after = resource.pop("DependsOn", [])
        resource["DependsOn"] = [one for one in ([after] if isinstance(after, str) else after) if one in left]
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
