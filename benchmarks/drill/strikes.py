"""How the faults of a drill are caused: by the local cloud, by a person with AWS's API, or by root on a node."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.drill.local_cluster import LocalCluster
from benchmarks.drill.scenarios import HEAD, UP, Scenario
from phalanx.errors import PhalanxError

# Longer than nodes wait for one that is silent, shorter than a step may take.
AWAY_S = 15.0
_NOTICED_AFTER_S = 10.0
_NOTICE_S = 3.0
_TYPE = "c5.large"
_POLICIES = 2
# Only the program's process has this in its command line. The agent is the node's user data, or its unit's command.
AGENT_COMMAND = r"^\S*python\S* .*(/scripts/part-001|/phalanx/agent serve) *$"
_SSHD_COMMAND = r"\[listener\]"
# Inodes rather than bytes: the disk is this machine's memory.
_FILL = """mkdir -p /var/full && cd /var/full && python3 -c '
import itertools, os
try:
    for number in itertools.count():
        os.close(os.open(str(number), os.O_CREAT))
except OSError as full:
    print(full)
'"""


class NotYetError(PhalanxError):
    """What the fault is about does not exist yet."""


@dataclass(frozen=True)
class Struck:
    """What was done; `gone` is the instance that must not be a member afterwards, `lift` takes the fault back."""

    text: str
    gone: str = ""
    lift: Callable[[], None] = lambda: None


Strike = Callable[[LocalCluster, Scenario], Struck]


def _victim(cluster: LocalCluster, scenario: Scenario) -> str:
    found = sorted(cluster.machines("head" if scenario.victim == HEAD else "workers"))
    if not found:
        raise NotYetError(f"there is no {scenario.victim} yet")
    return found[scenario.number % len(found)]


def _on_machine(cluster: LocalCluster, scenario: Scenario, name: str, gone: bool = False, **more: Any) -> Struck:
    instance = _victim(cluster, scenario)
    cluster.fault(**{name: {"instance_id": instance, **more}})
    return Struck(f"{name} {scenario.victim} {instance}", instance if gone else "")


def dies(cluster: LocalCluster, scenario: Scenario) -> Struck:
    return _on_machine(cluster, scenario, "kill", True)


def dies_silently(cluster: LocalCluster, scenario: Scenario) -> Struck:
    return _on_machine(cluster, scenario, "kill", True, silent=True, noticed_after_s=_NOTICED_AFTER_S)


def is_terminated(cluster: LocalCluster, scenario: Scenario) -> Struck:
    instance = _victim(cluster, scenario)
    cluster.api().call("ec2", "terminate_instances", InstanceIds=[instance])
    return Struck(f"terminated {scenario.victim} {instance} by the API", instance)


def is_cut_off(cluster: LocalCluster, scenario: Scenario) -> Struck:
    return _on_machine(cluster, scenario, "partition", True, cut=True)


def stalls(cluster: LocalCluster, scenario: Scenario) -> Struck:
    return _on_machine(cluster, scenario, "stall", for_s=AWAY_S)


def is_frozen(cluster: LocalCluster, scenario: Scenario) -> Struck:
    return _on_machine(cluster, scenario, "freeze", for_s=AWAY_S)


def loses_sshd(cluster: LocalCluster, scenario: Scenario) -> Struck:
    return _on_machine(cluster, scenario, "end", command=_SSHD_COMMAND)


def loses_agent(cluster: LocalCluster, scenario: Scenario) -> Struck:
    return _on_machine(cluster, scenario, "end", command=AGENT_COMMAND)


def has_notice(cluster: LocalCluster, scenario: Scenario) -> Struck:
    return _on_machine(cluster, scenario, "interrupt", True, notice_s=_NOTICE_S)


def lacks_capacity(cluster: LocalCluster, scenario: Scenario) -> Struck:
    """AWS has no more machines than there are, less one: at a replacement none can come."""
    most = 1 if scenario.step == UP else 0
    cluster.fault(capacity={_TYPE: most})
    return Struck(f"capacity for {most} of {_TYPE}", lift=lambda: cluster.fault(capacity={_TYPE: None}))


def quota(name: str, most: int) -> Strike:
    def strike(cluster: LocalCluster, _scenario: Scenario) -> Struck:
        cluster.fault(**{name: most})
        return Struck(f"{name} {most}", lift=lambda: cluster.fault(**{name: None}))

    return strike


def refuses_launches(cluster: LocalCluster, _scenario: Scenario) -> Struck:
    refusal = {"message": "Client.InternalError: an internal error", "code": "Client.InternalError", "times": 2}
    cluster.fault(fail_launch=refusal)
    return Struck("the next 2 launches fail", lift=lambda: cluster.fault(fail_launch=None))


def nothing(_cluster: LocalCluster, _scenario: Scenario) -> Struck:
    return Struck("")


def detach_policy(cluster: LocalCluster, scenario: Scenario) -> Struck:
    """Delete a policy of the victim's role: its own, or the one that the nodes' roles share."""
    role = _made(cluster, "HeadRole" if scenario.victim == HEAD else "WorkerRole")
    _made(cluster, "NodePolicy")
    api = cluster.api()
    names = sorted(api.call("iam", "list_role_policies", RoleName=role)["PolicyNames"])
    if len(names) < _POLICIES:
        raise NotYetError(f"{role} has only {names} yet")
    name = names[scenario.number % _POLICIES]
    chosen = {"RoleName": role, "PolicyName": name}
    document = json.dumps(api.call("iam", "get_role_policy", **chosen)["PolicyDocument"])
    api.call("iam", "delete_role_policy", **chosen)
    return Struck(
        f"detached {name} from {role}",
        lift=lambda: _call(cluster, "iam", "put_role_policy", **chosen, PolicyDocument=document),
    )


def revoke_rule(cluster: LocalCluster, scenario: Scenario) -> Struck:
    """Revoke what lets ssh into the head, or the nodes reach each other."""
    group = _made(cluster, "HeadSecurityGroup" if scenario.victim == HEAD else "NodeSecurityGroup")
    api = cluster.api()
    (found,) = api.call("ec2", "describe_security_groups", GroupIds=[group])["SecurityGroups"]
    if not found["IpPermissions"]:
        raise NotYetError(f"{group} has no rule yet")
    rules = {"GroupId": group, "IpPermissions": found["IpPermissions"]}
    api.call("ec2", "revoke_security_group_ingress", **rules)
    return Struck(
        f"revoked the rules of {group}",
        lift=lambda: _call(cluster, "ec2", "authorize_security_group_ingress", **rules),
    )


def delete_route(cluster: LocalCluster, scenario: Scenario) -> Struck:
    """Delete the way out of the subnet of the victim."""
    kind = "Public" if scenario.victim == HEAD else "Private"
    _made(cluster, f"{kind}Route")
    table = _made(cluster, f"{kind}RouteTable")
    api = cluster.api()
    (found,) = api.call("ec2", "describe_route_tables", RouteTableIds=[table])["RouteTables"]
    everywhere = {"RouteTableId": table, "DestinationCidrBlock": "0.0.0.0/0"}
    route = next(one for one in found["Routes"] if one.get("DestinationCidrBlock") == "0.0.0.0/0")
    target = {key: route[key] for key in ("GatewayId", "NatGatewayId") if route.get(key)}
    api.call("ec2", "delete_route", **everywhere)
    return Struck(
        f"deleted the default route of {table}",
        lift=lambda: _call(cluster, "ec2", "create_route", **everywhere, **target),
    )


def fill_disk(cluster: LocalCluster, scenario: Scenario) -> Struck:
    """Fill the root disk of a node with small files, until no file more can be made there."""
    node = "head" if scenario.victim == HEAD else "worker2"
    on_node = ("exec", "--sudo", "--node", node, "--")
    filled = cluster.phalanx(*on_node, _FILL)
    if "No space left" not in filled.stdout:
        raise NotYetError(f"the disk of {node} is not full: {filled.stdout}{filled.stderr}")
    return Struck(f"filled the disk of {node}", lift=lambda: _phalanx(cluster, *on_node, "rm -rf /var/full"))


def _made(cluster: LocalCluster, logical_id: str) -> str:
    found = cluster.made(logical_id)
    if not found:
        raise NotYetError(f"there is no {logical_id} yet")
    return found


def _call(cluster: LocalCluster, service: str, operation: str, **arguments: Any) -> None:
    cluster.api().call(service, operation, **arguments)


def _phalanx(cluster: LocalCluster, *arguments: str) -> None:
    """Run a command that takes a fault back, up to three times. Raises PhalanxError if none succeeds."""
    done = cluster.phalanx(*arguments)
    for _ in range(2):
        done = cluster.phalanx(*arguments) if done.returncode else done
    if done.returncode:
        raise PhalanxError(f"`{' '.join(arguments)}` ended with {done.returncode}: {done.stdout}{done.stderr}")
