"""The network of a cluster as a test sees it: what its stack made, and who reaches whom."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from local_clouds import api, endpoint
from terminals import Terminal

from localcloud.nodes.machine import API_ADDRESS, API_PORT
from phalanx.ssh.remote import close_all

# Packets are dropped, not refused, so only a timeout shows it. A first packet that was lost is repeated after 1 s.
REACH_S = 2.5
SOON_S = 240.0
ANYWHERE = "0.0.0.0/0"
# Of a service without an endpoint, for which nodes need their way out.
API = (API_ADDRESS, f"{API_PORT}/sts")
DYNAMODB = (API_ADDRESS, f"{API_PORT}/dynamodb")
# It belongs to nobody (RFC 5737): the stand-in for the internet accepts connections before it looks for their target.
WEB = ("198.51.100.7", 443)
REACH = f"""\
import socket, sys
from concurrent.futures import ThreadPoolExecutor
def ask(address):
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.settimeout({REACH_S})
    names.sendto(bytes.fromhex("00070100000100000000000001610461727061000001 0001"), (address, 53))  # a.arpa
    names.recv(512)
def call(connection, service):
    signed = "Authorization: AWS4-HMAC-SHA256 Credential=x/20261123/us-east-1/" + service + "/aws4_request, y=z"
    connection.sendall(("GET / HTTP/1.0\\r\\n" + signed + "\\r\\n\\r\\n").encode())
    connection.recv(1)
def reach(address, port):
    port, _, service = port.partition("/")
    try:
        if port == "53":
            ask(address)
            return "reached"
        with socket.create_connection((address, int(port)), {REACH_S}) as connection:
            if service:
                call(connection, service)
    except TimeoutError:
        return "dropped"
    except ConnectionRefusedError:
        return "refused"
    return "reached"
with ThreadPoolExecutor() as pool:
    print(*pool.map(reach, sys.argv[1::2], sys.argv[2::2]))
"""


class Network:
    """The network of a cluster: what its stack made, and who reaches whom."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.ec2, self.efs = api(terminal, "ec2"), api(terminal, "efs")
        name = terminal.phalanx("status", "--json").stdout
        found = api(terminal, "cloudformation").describe_stack_resources(StackName=value(name, "cluster"))
        self.made = {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in found["StackResources"]}
        self.nodes = {node["name"].removeprefix("deeplearning-"): node["address"] for node in value(name, "nodes")}
        self.head = value(name, "head_address")
        for node in ("worker1", "worker2"):
            terminal.on(node, f"cat > /tmp/reach.py <<'END'\n{REACH}END")
        self.log_in()

    def log_in(self) -> None:
        """Open the connections by which nodes are asked what they reach: later, a rule that is gone may drop them."""
        for node in ("worker1", "worker2"):
            self.reach(node)

    def log_out(self) -> None:
        """Close the shared connections, so that the next login makes a new one."""
        for config in self.terminal.state.glob("clusters/*/ssh_config"):
            close_all(config)

    def reach(self, node: str, *places: tuple[str, int | str]) -> list[str]:
        """Return for each place whether a connection from the node is "reached", "refused" or "dropped"."""
        targets = " ".join(f"{address} {port}" for address, port in places)
        # as root, because jobs do not reach the metadata service
        command = f"sudo python3 /tmp/reach.py {targets}"
        return self.terminal.phalanx("ssh", "--admin", node, "--", command).stdout.split()

    def becomes(self, expected: str, node: str, *places: tuple[str, int | str]) -> None:
        """Wait until all of these places are reached, or none is."""
        wait_until(lambda: set(self.reach(node, *places)) == {expected}, f"{places} to be {expected} from {node}")

    def mount_target(self) -> str:
        found = self.efs.describe_mount_targets(MountTargetId=self.made["MountTarget"])["MountTargets"]
        return found[0]["IpAddress"]

    def rules(self, group: str, direction: str) -> list[dict[str, Any]]:
        """Return a group's rules, those for groups apart from those for networks."""
        key = {"ingress": "IpPermissions", "egress": "IpPermissionsEgress"}[direction]
        found = self.ec2.describe_security_groups(GroupIds=[self.made[group]])["SecurityGroups"][0][key]
        services = [{k: v for k, v in rule.items() if k in ("IpProtocol", "FromPort", "ToPort")} for rule in found]
        peers = ("UserIdGroupPairs", "IpRanges")
        return [{**own, p: rule[p]} for own, rule in zip(services, found, strict=True) for p in peers if rule[p]]

    @contextmanager
    def without_rules(self, group: str, direction: str, but: Callable[[dict[str, Any]], bool]) -> Iterator[None]:
        """Revoke a group's rules, except those that `but` names, for the block."""
        taken = [rule for rule in self.rules(group, direction) if not but(rule)]
        assert taken, f"{group} has no such {direction} rule"
        self.log_in()
        change = {"GroupId": self.made[group], "IpPermissions": taken}
        getattr(self.ec2, f"revoke_security_group_{direction}")(**change)
        try:
            yield
        finally:
            getattr(self.ec2, f"authorize_security_group_{direction}")(**change)

    @contextmanager
    def without_route(self, table: str, **target: str) -> Iterator[None]:
        """Delete a table's default route for the block."""
        where = {"RouteTableId": self.made[table], "DestinationCidrBlock": ANYWHERE}
        self.ec2.delete_route(**where)
        try:
            yield
        finally:
            self.ec2.create_route(**where, **target)

    def dial(self, host: str, timeout_s: float = REACH_S) -> str:
        """Return how a connection from this machine to sshd on a node ends: reached, dropped, or the refusal."""
        argv = [*endpoint(self.terminal)["dial"], host, "22"]
        ours, ssh = socket.socketpair()
        with ours, ssh:
            try:
                done = subprocess.run(argv, stdout=ssh.fileno(), stderr=subprocess.PIPE, text=True, timeout=timeout_s)
            except subprocess.TimeoutExpired:
                return "dropped"
        return done.stderr or "reached"

    @contextmanager
    def with_acl(self, subnet: str) -> Iterator[str]:
        """Give a subnet a new network ACL, which allows nothing yet, for a while."""
        filters = [{"Name": "association.subnet-id", "Values": [self.made[subnet]]}]
        before = self.ec2.describe_network_acls(Filters=filters)["NetworkAcls"][0]
        association = next(a for a in before["Associations"] if a["SubnetId"] == self.made[subnet])
        acl = self.ec2.create_network_acl(VpcId=self.made["Vpc"])["NetworkAcl"]["NetworkAclId"]
        swapped = self.ec2.replace_network_acl_association(
            AssociationId=association["NetworkAclAssociationId"], NetworkAclId=acl
        )
        try:
            yield acl
        finally:
            self.ec2.replace_network_acl_association(
                AssociationId=swapped["NewAssociationId"], NetworkAclId=before["NetworkAclId"]
            )
            self.ec2.delete_network_acl(NetworkAclId=acl)


def value(document: str, key: str) -> Any:
    return json.loads(document)[key]


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < deadline, f"waited {SOON_S:.0f} s for {what}"
        time.sleep(0.1)
