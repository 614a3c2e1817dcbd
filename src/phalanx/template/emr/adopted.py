"""The document that adopts an EMR cluster: the rendezvous of its nodes, and what their role may do with it.

It makes no machines, no network and no storage. Without this stack, the cluster is what it was before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from troposphere import Output, Parameter, Ref, Template, cloudformation, iam

from phalanx import __version__
from phalanx.node.settings import FORMAT
from phalanx.node.workers_group import workers_of
from phalanx.template import access, rendezvous, storage, userdata
from phalanx.template.emr import bootstrap_action
from phalanx.template.naming import arn

HANDLE, CONDITION = "ReadyHandle", "Ready"
CLUSTER = "EmrCluster"
"""The parameter with the cluster's id."""
READY_TIMEOUT_S = 1800
_BEFORE = ("HeadQueue", "RosterTable", "LogGroup", "JobRole", "NodePolicy")


@dataclass(frozen=True)
class Terms:
    """How a cluster is adopted. `served_by_head`: the master serves the shared directory from its own disk."""

    cluster: EmrCluster
    name: str
    least: int
    node_timeout_s: int
    shared: str
    served_by_head: bool
    ssh_public_key: str = ""


def request(terms: Terms) -> tuple[str, dict[str, str]]:
    """Return the document, and its parameters."""
    parameters = {**_parameters(terms), **userdata.parameters()}
    template = Template(Description=f"An EMR cluster that phalanx {__version__} has adopted, without its machines")
    template.set_version()
    for name in parameters:
        template.add_parameter(Parameter(name, Type="String"))
    for resource in _resources(terms.name):
        template.add_resource(resource)
    for name, value in _outputs().items():
        template.add_output(Output(name, Value=value))
    # The head reads the agent's parameters from the stack itself, and phalanx the others.
    template.set_metadata({"cfn-lint": {"config": {"ignore_checks": ["W2001"]}}})
    return json.dumps(template.to_dict(), separators=(",", ":")), parameters


def _parameters(terms: Terms) -> dict[str, str]:
    found = terms.cluster
    return {
        CLUSTER: found.cluster_id,
        "NodeRole": found.role,
        "NodeRoleArn": found.role_arn,
        "HeadAddress": found.master_address,
        "HeadSecurityGroup": found.group,
        "InstanceType": found.type,
        "HeadType": found.master_type,
        "Image": found.image,
        "Workers": str(workers_of(len(found.instances))),
        "MinNodes": str(terms.least),
        "NodeTimeout": str(terms.node_timeout_s),
        "SharedDirectory": terms.shared,
        "SshPublicKey": terms.ssh_public_key,
    }


def _resources(name: str) -> list[Any]:
    trusted = access.trust({"AWS": Ref("NodeRoleArn")})
    return [
        rendezvous.queue(),
        rendezvous.table(),
        storage.log_group(),
        iam.Role("JobRole", AssumeRolePolicyDocument=trusted),
        iam.PolicyType("NodePolicy", Roles=[Ref("NodeRole")], **access.policy(f"phalanx-{name}", _of_nodes())),
        cloudformation.WaitConditionHandle(HANDLE),
        cloudformation.WaitCondition(
            CONDITION, Handle=Ref(HANDLE), Timeout=str(READY_TIMEOUT_S), Count=1, DependsOn=list(_BEFORE)
        ),
    ]


def _of_nodes() -> list[dict[str, Any]]:
    """Return what the agents may do. They read the cluster's groups, and can't change them by this."""
    reads = [f"elasticmapreduce:{action}" for action in ("ListInstanceGroups", "ListInstances")]
    return [
        *access.membership_of_both(),
        access.own_logs(),
        access.agent_of_head(),
        access.allow(reads, arn("elasticmapreduce", f"cluster/${{{CLUSTER}}}")),
        access.allow(["ec2:DescribeInstances"], "*"),
    ]


def _outputs() -> dict[str, Any]:
    made = ("RosterTable", "HeadQueue", "JobRole", "LogGroup", "HeadAddress", "HeadSecurityGroup", CLUSTER)
    return {**{name: Ref(name) for name in made}, "AgentVersion": userdata.agent_version()}


def boot(terms: Terms, instance: Instance, stack_id: str, domain: str, made: dict[str, str], job_role: str) -> bytes:
    """Return the script that starts the agent on an instance; `made` are the stack's physical ids.

    Its settings are within it, because everybody on the node may read a command's arguments.
    """
    found = terms.cluster
    trains = found.head_trains or not instance.is_master
    settings = {
        "format": str(FORMAT),
        "stack_id": stack_id,
        "domain": domain,
        "role": "head",
        "queue_url": made["HeadQueue"],
        "table": made["RosterTable"],
        "log_group": made["LogGroup"],
        "job_role": job_role,
        "workers": str(workers_of(len(found.instances))),
        "min": str(terms.least),
        "node_timeout_s": str(terms.node_timeout_s),
        "slots": "0" if trains else "-1",
        "efa": "",
        "gpus": f"{found.type}={found.gpus}" if found.gpus else "",
        "block": "",
        "shared": terms.shared,
        "file_system": "head" if terms.served_by_head else "mounted",
        "ssh_public_key": terms.ssh_public_key,
        "wait_handle": made[HANDLE],
        "networks": found.network,
        "worker_role": found.role_id,
        "address": "",
        "fixed": "1",
        "digest": userdata.digest(None),
    }
    return bootstrap_action.with_arguments([f"{name}={value}" for name, value in settings.items()]).encode()


@dataclass(frozen=True)
class Instance:
    """A master or core instance that runs."""

    instance_id: str
    address: str
    """Its private address."""
    is_master: bool


@dataclass(frozen=True)
class EmrCluster:
    """An EMR cluster that can be adopted. `instances` has the master first, and no task instances."""

    cluster_id: str
    name: str
    instances: tuple[Instance, ...]
    master_address: str
    """The master's public address, or its private one if it has no other."""
    master_type: str
    type: str
    """Of the core instances, or of a master without any."""
    gpus: int
    """How many a core instance has."""
    image: str
    network: str
    """The block of addresses of its subnet."""
    group: str
    """The managed security group of the master."""
    key_pair: str
    """"" if it has none, so that nobody can log in."""
    role: str
    """The name of the role that all instances have."""
    role_arn: str
    role_id: str
    task_instances: int
    ends_itself: bool
    """Whether EMR ends it after its last step."""

    @property
    def master(self) -> Instance:
        return self.instances[0]

    @property
    def head_trains(self) -> bool:
        """Whether jobs run on the master, too: unless it is of another type than the core instances."""
        return self.master_type == self.type
