"""Networks decide: each rule, route and gateway is taken from a cluster through the API, and what it is for fails."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import WaiterError
from cluster_networks import ANYWHERE, API, DYNAMODB, WEB, Network, wait_until
from local_clouds import api, create_as_the_console
from terminals import Terminal, shared_of

from localcloud.nodes.machine import DNS_ADDRESS, IMDS_ADDRESS

pytestmark = pytest.mark.cluster
LOCAL_CLOUD_PAGE = Path(__file__).parents[2] / "docs/local-cloud.md"


@pytest.fixture(scope="module")
def network(cluster: Terminal) -> Network:
    return Network(cluster)


def names_a_group(rule: dict[str, Any]) -> bool:
    return "UserIdGroupPairs" in rule


def never(_rule: dict[str, Any]) -> bool:
    return False


def test_a_whole_network_lets_everything_through_that_a_cluster_needs(network: Network):
    ssh = (network.nodes["worker3"], 22)
    network.becomes("reached", "worker2", ssh, WEB, API, (network.mount_target(), 2049))
    wait_until(lambda: network.dial(network.head) == "reached", "ssh to be let in")


def test_users_reach_workers_through_the_head_only(network: Network):
    assert network.dial(network.nodes["worker2"]) == "dropped"
    came_from = network.terminal.on("worker2", "echo $SSH_CONNECTION").split()[0]
    assert came_from == network.nodes["worker1"]


def test_nodes_reach_each_other_by_the_groups_own_rule_only(network: Network):
    ssh = (network.nodes["worker3"], 22)
    with network.without_rules("NodeSecurityGroup", "ingress", but=never):
        network.becomes("dropped", "worker2", ssh)
        network.becomes("reached", "worker2", API)
        network.terminal.phalanx("ssh", "--admin", "worker2", "--", "sudo /usr/sbin/nft flush ruleset")
        assert network.reach("worker2", ssh) == ["dropped"], "root on a node owns that node's network, not the VPC's"
    network.becomes("reached", "worker2", ssh)


def test_an_address_that_was_not_allowed_can_be_added(network: Network):
    allow = ("allow", "127.0.0.1")
    assert "127.0.0.1/32 may already reach the head" in network.terminal.phalanx("allow").stdout
    with network.without_rules("HeadSecurityGroup", "ingress", but=never):
        wait_until(lambda: network.dial(network.head) == "dropped", "ssh to be dropped")
        network.log_out()
        refused = network.terminal.phalanx("ssh", "--", "true", check=False)
        assert "address 127.0.0.1 may not" in refused.stderr
        assert "127.0.0.1/32 may now reach the head" in network.terminal.phalanx(*allow).stdout
        wait_until(lambda: network.dial(network.head) == "reached", "ssh to be let in")
        (rule,) = network.rules("HeadSecurityGroup", "ingress")
        group = network.made["HeadSecurityGroup"]
        network.ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=[rule])
    refused = network.terminal.phalanx("allow", "home", check=False)
    assert "'home' is not a network" in refused.stderr


def test_connections_outlive_their_rule(network: Network):
    with network.without_rules("HeadSecurityGroup", "ingress", but=never):
        wait_until(lambda: network.dial(network.head) == "dropped", "ssh to be dropped")
        assert network.terminal.on("worker1", "echo here") == "here\n", "the connection was made before"
    wait_until(lambda: network.dial(network.head) == "reached", "ssh to be let in")


def test_the_program_of_the_page_closes_the_head_s_port(network: Network):
    (program,) = re.findall(r"```python\n(.*?)```", LOCAL_CLOUD_PAGE.read_text(), re.DOTALL)
    taken = network.rules("HeadSecurityGroup", "ingress")
    try:
        network.terminal.typed(f"eval \"$(phalanx local env)\"\npython - <<'END'\n{program}END")
        wait_until(lambda: network.dial(network.head) == "dropped", "ssh to be dropped")
    finally:
        group = network.made["HeadSecurityGroup"]
        network.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=taken)
    wait_until(lambda: network.dial(network.head) == "reached", "ssh to be let in")


def test_egress_decides_too_and_the_rule_for_the_group_leaves_nodes_to_each_other(network: Network):
    ssh, nfs = (network.nodes["worker3"], 22), (network.mount_target(), 2049)
    with network.without_rules("NodeSecurityGroup", "egress", but=names_a_group):
        network.becomes("dropped", "worker2", WEB, API, nfs)
        network.becomes("reached", "worker2", ssh, (IMDS_ADDRESS, 80), (DNS_ADDRESS, 53))
    network.becomes("reached", "worker2", WEB, API, nfs)


def test_ports_protocols_and_blocks_decide(network: Network):
    group, there = network.made["NodeSecurityGroup"], network.nodes["worker3"]
    network.terminal.on("worker3", "setsid python3 -m http.server 7001 >/dev/null 2>&1 </dev/null &")
    network.becomes("reached", "worker2", (there, 7001))
    own = [{"CidrIp": f"{network.nodes['worker2']}/32"}]
    wanted = [{"IpProtocol": "tcp", "FromPort": 7000, "ToPort": 7002, "IpRanges": own}]
    with network.without_rules("NodeSecurityGroup", "ingress", but=never):
        network.becomes("dropped", "worker2", (there, 7001))
        network.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=wanted)
        try:
            network.becomes("reached", "worker2", (there, 7001))
            assert network.reach("worker2", (there, 22)) == ["dropped"]
        finally:
            network.ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=wanted)
    network.terminal.on("worker3", "pkill -f http.server")


def test_a_prefix_list_stands_for_its_entries(network: Network):
    group, ssh = network.made["NodeSecurityGroup"], (network.nodes["worker3"], 22)
    own = [{"Cidr": f"{network.nodes['worker2']}/32"}]
    made = network.ec2.create_managed_prefix_list(
        PrefixListName="mine", Entries=own, MaxEntries=5, AddressFamily="IPv4"
    )["PrefixList"]
    listed = [{"PrefixListId": made["PrefixListId"]}]
    wanted = [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "PrefixListIds": listed}]
    with network.without_rules("NodeSecurityGroup", "ingress", but=never):
        network.becomes("dropped", "worker2", ssh)
        network.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=wanted)
        try:
            network.becomes("reached", "worker2", ssh)
            network.ec2.modify_managed_prefix_list(**listed[0], CurrentVersion=1, RemoveEntries=own)
            network.becomes("dropped", "worker2", ssh)
        finally:
            network.ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=wanted)
    network.becomes("reached", "worker2", ssh)


def test_a_network_acl_decides_at_the_border_of_its_subnet(network: Network):
    inside, outside = (network.nodes["worker3"], 22), (network.nodes["worker1"], 22)
    with network.with_acl("PrivateSubnet") as acl:
        _entry(network, acl, 10, "deny", Egress=True, Protocol="6", PortRange={"From": 443, "To": 443})
        for egress in (True, False):
            _entry(network, acl, 20, "allow", Egress=egress, Protocol="-1")
        network.becomes("dropped", "worker2", WEB, API)
        network.becomes("reached", "worker2", inside, outside, (IMDS_ADDRESS, 80), (DNS_ADDRESS, 53))
        # Stateless: the answers to connections that the other direction allows are dropped.
        _entry(network, acl, 5, "deny", Egress=False, Protocol="6", PortRange={"From": 1024, "To": 65535})
        network.becomes("dropped", "worker2", outside)
    network.becomes("reached", "worker2", WEB, API, outside)


def _entry(network: Network, acl: str, number: int, action: str, **more: Any) -> None:
    network.ec2.create_network_acl_entry(
        NetworkAclId=acl, RuleNumber=number, RuleAction=action, CidrBlock=ANYWHERE, **more
    )


def test_the_file_system_is_mounted_only_where_its_group_lets_nfs_in(network: Network):
    mount = "sudo mkdir -p /mnt/again; sudo mount -t efs -o tls {}:/ /mnt/again 2>&1; sudo umount /mnt/again 2>&1"
    mount = mount.format(network.made["FileSystem"])
    assert "timed out" not in network.terminal.phalanx("ssh", "--admin", "worker2", "--", mount, check=False).stdout
    with network.without_rules("StorageSecurityGroup", "ingress", but=never):
        network.becomes("dropped", "worker2", (network.mount_target(), 2049))
        shown = network.terminal.phalanx("ssh", "--admin", "worker2", "--", mount, check=False).stdout
        assert "mount.nfs4: Connection timed out" in shown
    network.becomes("reached", "worker2", (network.mount_target(), 2049))


def test_a_public_name_means_the_private_address_while_the_vpc_has_host_names(network: Network):
    # Clusters of other tests have the same private addresses.
    asked_for = {"private-ip-address": network.nodes["worker1"], "vpc-id": network.made["Vpc"]}
    head = [{"Name": name, "Values": [value]} for name, value in asked_for.items()]
    private = f"ip-{network.nodes['worker1'].replace('.', '-')}.ec2.internal"
    services = "sqs.us-east-1.amazonaws.com iam.amazonaws.com"

    def public() -> str:
        return network.ec2.describe_instances(Filters=head)["Reservations"][0]["Instances"][0]["PublicDnsName"]

    def found() -> str:
        # Read each time: another address of the head has another name.
        asked = f"for name in {known or public()} {private} {services}; do getent ahostsv4 $name | head -1; done"
        return " ".join(line.split()[0] for line in network.terminal.on("worker2", asked).splitlines())

    known, address = "", network.nodes["worker1"]
    # The name server hears of changes a moment later.
    wait_until(lambda: found() == f"{address} {address}", "both names")
    known = public()  # without host names, an instance has none
    network.ec2.modify_vpc_attribute(VpcId=network.made["Vpc"], EnableDnsHostnames={"Value": False})
    try:
        wait_until(lambda: address not in found(), "the names to be gone")
    finally:
        network.ec2.modify_vpc_attribute(VpcId=network.made["Vpc"], EnableDnsHostnames={"Value": True})
    wait_until(lambda: found() == f"{address} {address}", "the names to be back")


def test_workers_get_out_by_the_private_route_only(network: Network):
    with network.without_route("PrivateRouteTable", NatGatewayId=network.made["NatGateway"]):
        network.becomes("dropped", "worker2", WEB, API)
        # Its gateway endpoint needs no way out.
        network.becomes("reached", "worker2", DYNAMODB)
        inside = [(IMDS_ADDRESS, 80), (DNS_ADDRESS, 53), (network.nodes["worker3"], 22)]
        network.becomes("reached", "worker2", *inside)
        # The head has a route of its own.
        network.becomes("reached", "worker1", API)
    network.becomes("reached", "worker2", WEB, API)


def test_without_the_public_route_nobody_gets_out_or_in(network: Network):
    # Users' connections through the head freeze, too, so the worker looks by itself and writes what it saw.
    look = "until grep -s dropped /efs/seen; do python3 /tmp/reach.py {} {} >/efs/seen; sleep 0.2; done".format(*API)
    network.terminal.on("worker2", f"setsid timeout 600 sh -c '{look}' >/dev/null 2>&1 </dev/null &")
    seen = shared_of(network.terminal) / "seen"
    with network.without_route("PublicRouteTable", GatewayId=network.made["InternetGateway"]):
        wait_until(lambda: network.dial(network.head) == "dropped", "ssh to be dropped")
        wait_until(lambda: seen.exists() and "dropped" in seen.read_text(), "the worker to be cut off")
    wait_until(lambda: network.dial(network.head) == "reached", "ssh to be let in")
    network.becomes("reached", "worker2", WEB, API)


def test_all_nodes_together_cost_one_login_at_the_head(network: Network):
    def logins() -> int:
        count = "sudo grep -c 'Accepted publickey for phalanx' /var/log/auth.log"
        return int(network.terminal.phalanx("ssh", "--admin", "head", "--", count).stdout)

    network.log_out()
    before = logins()
    assert len(network.terminal.phalanx("exec", "--", "hostname").stdout.splitlines()) == len(network.nodes)
    assert logins() - before == 1
    network.log_in()


SHORT = "name: {}\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nshared: /efs\nkeep: no\nnode_timeout: {}\n"


def a_small_terminal(network: Network, name: str, node_timeout: str) -> Terminal:
    """Return a terminal beside the cluster's own, with a file for two nodes."""
    terminal = Terminal(network.terminal.state.parent / name, network.terminal.state)
    terminal.directory.mkdir()
    (terminal.directory / "phalanx.yaml").write_text(SHORT.format(name, node_timeout))
    return terminal


@pytest.mark.parametrize(
    ("resource", "reason"),
    [
        ("PrivateRoute", "never said hello"),
        ("NodesFromNodes", "deeplearning-worker2"),
    ],
)
def test_a_template_without_a_rule_that_nodes_need_makes_no_cluster(network: Network, resource: str, reason: str):
    name = f"without-{resource.lower()}"
    terminal = a_small_terminal(network, name, "8s")
    document = json.loads(terminal.phalanx("template").stdout)
    del document["Resources"][resource]
    for left in document["Resources"].values():
        if resource in left.get("DependsOn", []):
            left["DependsOn"].remove(resource)
    stacks = api(network.terminal, "cloudformation")
    create_as_the_console(network.terminal, name, json.dumps(document), OnFailure="DO_NOTHING")
    try:
        with pytest.raises(WaiterError):
            stacks.get_waiter("stack_create_complete").wait(
                StackName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 300}
            )
        events = stacks.describe_stack_events(StackName=name)["StackEvents"]
        failed = [event["ResourceStatusReason"] for event in events if event["ResourceStatus"] == "CREATE_FAILED"]
        assert any("at least 2 are needed" in why and reason in why for why in failed), failed
    finally:
        stacks.delete_stack(StackName=name)
        stacks.get_waiter("stack_delete_complete").wait(StackName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 300})


def test_a_cluster_comes_up_where_only_the_listed_hosts_can_be_reached(network: Network):
    """Environments and Pythons are downloaded for jobs alone: without them, nodes reach nothing on the web."""
    terminal = a_small_terminal(network, "listed", "10m")
    listed = json.loads(terminal.phalanx("plan", "--egress", "--json").stdout)
    rules = [_to(one["host"], one["port"]) for one in listed if one["needed_for"] == "every boot"]
    document = json.loads(terminal.phalanx("template").stdout)
    document["Resources"]["NodeSecurityGroup"]["Properties"]["SecurityGroupEgress"] = rules
    stacks = api(network.terminal, "cloudformation")
    create_as_the_console(network.terminal, "listed", json.dumps(document), OnFailure="DO_NOTHING")
    try:
        stacks.get_waiter("stack_create_complete").wait(
            StackName="listed", WaiterConfig={"Delay": 1, "MaxAttempts": 300}
        )
    finally:
        stacks.delete_stack(StackName="listed")
        stacks.get_waiter("stack_delete_complete").wait(
            StackName="listed", WaiterConfig={"Delay": 1, "MaxAttempts": 300}
        )


def _to(host: str, port: int) -> dict[str, Any]:
    block = host if "/" in host else f"{host}/32"
    return {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, "CidrIp": block}
