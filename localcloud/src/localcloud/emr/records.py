"""The records of EMR clusters, instance groups and instances, and how the API describes them."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from moto.ec2.models.instances import Instance

from localcloud.api import partitions
from localcloud.emr.steps import Step

ENDED = ("TERMINATED", "TERMINATED_WITH_ERRORS")
ENDING = ("TERMINATING", *ENDED)
READY = ("RUNNING", "WAITING")
TAGS: dict[str, dict[str, str]] = {}
"""The tags of each cluster by its id, by which policies decide about calls."""
_ALPHABET = string.ascii_uppercase + string.digits


def new_id(prefix: str) -> str:
    """Return an id as EMR makes them: 13 letters and digits after the prefix."""
    return f"{prefix}-{''.join(secrets.choice(_ALPHABET) for _ in range(13))}"


@dataclass(frozen=True)
class Reason:
    """Why something is in its state: EMR's code and message, and for failures the details of the error."""

    code: str = ""
    message: str = ""
    details: Mapping[str, Any] | None = None

    def describe(self) -> dict[str, str]:
        return {"Code": self.code, "Message": self.message} if self.code else {"Message": self.message}


@dataclass
class Life:
    """A state with its reason, and the times at which it changed."""

    state: str
    created: datetime
    reason: Reason = field(default_factory=Reason)
    ready: datetime | None = None
    ended: datetime | None = None

    def describe(self) -> dict[str, Any]:
        timeline = {"CreationDateTime": self.created, "ReadyDateTime": self.ready, "EndDateTime": self.ended}
        found: dict[str, Any] = {"State": self.state, "StateChangeReason": self.reason.describe()}
        if self.reason.details:
            found["ErrorDetails"] = [self.reason.details]
        return {**found, "Timeline": {name: at for name, at in timeline.items() if at}}


@dataclass(eq=False)
class Member:
    """An instance of a group. `token` is what its controller proves itself with; `busy`: it runs something just now."""

    id: str
    token: str
    group: Group
    life: Life
    instance: Instance
    busy: bool = False

    @property
    def is_live(self) -> bool:
        return self.life.state != "TERMINATED"

    @property
    def dns_name(self) -> str:
        """The public DNS name, or the private one of an instance without a public address."""
        return (self.instance.public_ip and self.instance.public_dns_name) or self.instance.private_dns_name

    def describe(self) -> dict[str, Any]:
        return {
            "Id": self.id,
            "Ec2InstanceId": self.instance.id,
            "PublicDnsName": self.instance.public_dns_name if self.instance.public_ip else "",
            "PublicIpAddress": self.instance.public_ip,
            "PrivateDnsName": self.instance.private_dns_name,
            "PrivateIpAddress": self.instance.private_ip,
            "Status": self.life.describe(),
            "InstanceGroupId": self.group.id,
            "Market": self.group.market,
            "InstanceType": self.group.instance_type,
            "EbsVolumes": [],
        }


@dataclass(eq=False)
class Group:
    """A uniform instance group. `failures` are the members in a row that did not become ready."""

    id: str
    role: str
    name: str
    instance_type: str
    requested: int
    market: str
    custom_ami: str
    life: Life
    cluster: Cluster
    members: list[Member] = field(default_factory=list)
    failures: int = 0

    @property
    def live(self) -> list[Member]:
        return [member for member in self.members if member.is_live]

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members if member.life.state == "RUNNING"]

    @property
    def is_master(self) -> bool:
        return self.role == "MASTER"

    def describe(self) -> dict[str, Any]:
        return {
            "Id": self.id,
            "Name": self.name,
            "Market": self.market,
            "InstanceGroupType": self.role,
            "InstanceType": self.instance_type,
            "RequestedInstanceCount": self.requested,
            "RunningInstanceCount": len(self.running),
            "Status": self.life.describe(),
            "CustomAmiId": self.custom_ami or None,
            "Configurations": [],
            "EbsBlockDevices": [],
            "ShrinkPolicy": {},
        }


@dataclass(eq=False)
class Cluster:
    """A cluster. `wanted` is the request that made it; `settled(reason or None)` is called once, when it is ready."""

    id: str
    region: str
    account: str
    wanted: Mapping[str, Any]
    life: Life
    tags: dict[str, str]
    settled: Callable[[str | None], None] | None = None
    gone: list[Callable[[str | None], None]] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    protected: bool = False
    master_groups: list[str] = field(default_factory=list)
    slave_groups: list[str] = field(default_factory=list)
    service_group: str = ""

    def __post_init__(self) -> None:
        TAGS[self.id] = self.tags

    @property
    def instances(self) -> Mapping[str, Any]:
        """The request's settings of instances."""
        return self.wanted["Instances"]

    @property
    def arn(self) -> str:
        return f"{partitions.arn()}:elasticmapreduce:{self.region}:{self.account}:cluster/{self.id}"

    @property
    def log_uri(self) -> str:
        """Where the logs go, without "/" at the end; "" for a cluster without logs."""
        uri = str(self.wanted.get("LogUri") or "").rstrip("/")
        return f"s3://{uri.partition('://')[2]}" if uri else ""

    @property
    def members(self) -> list[Member]:
        return [member for group in self.groups for member in group.members]

    @property
    def live(self) -> list[Member]:
        return [member for member in self.members if member.is_live]

    @property
    def master(self) -> Member | None:
        """The master, or the first of three; None while there is none."""
        return next((member for member in self.live if member.group.is_master), None)

    @property
    def has_ended(self) -> bool:
        return self.life.state in ENDED

    @property
    def is_ending(self) -> bool:
        return self.life.state in ENDING

    @property
    def ends_without_steps(self) -> bool:
        return not self.instances.get("KeepJobFlowAliveWhenNoSteps", False)

    def group(self, group_id: str) -> Group | None:
        return next((group for group in self.groups if group.id == group_id), None)

    def summary(self) -> dict[str, Any]:
        return {
            "Id": self.id,
            "Name": self.wanted["Name"],
            "Status": self.life.describe(),
            "NormalizedInstanceHours": 0,
            "ClusterArn": self.arn,
        }

    def describe(self) -> dict[str, Any]:
        wanted = self.wanted
        return {
            **self.summary(),
            "Ec2InstanceAttributes": self._attributes(),
            "InstanceCollectionType": "INSTANCE_GROUP",
            # docs/aws-behaviour.md 7.38
            "LogUri": f"{self.log_uri.replace('s3:', 's3n:', 1)}/" if self.log_uri else None,
            "ReleaseLabel": wanted.get("ReleaseLabel"),
            "AutoTerminate": self.ends_without_steps,
            "TerminationProtected": self.protected,
            "VisibleToAllUsers": wanted.get("VisibleToAllUsers", True),
            "Applications": wanted.get("Applications") or [{"Name": "Hadoop"}],
            "Tags": [{"Key": key, "Value": value} for key, value in self.tags.items()],
            "ServiceRole": wanted.get("ServiceRole"),
            "MasterPublicDnsName": self.master.dns_name if self.master else None,
            "Configurations": wanted.get("Configurations") or [],
            "ScaleDownBehavior": wanted.get("ScaleDownBehavior", "TERMINATE_AT_TASK_COMPLETION"),
            "CustomAmiId": wanted.get("CustomAmiId"),
            "EbsRootVolumeSize": wanted.get("EbsRootVolumeSize"),
            "StepConcurrencyLevel": 1,
            "PlacementGroups": [],
        }

    def _attributes(self) -> dict[str, Any]:
        instances = self.instances
        master = self.master
        return {
            "Ec2KeyName": instances.get("Ec2KeyName"),
            "Ec2SubnetId": master.instance.subnet_id if master else instances.get("Ec2SubnetId"),
            "Ec2AvailabilityZone": master.instance.placement.zone if master else None,
            "IamInstanceProfile": self.wanted.get("JobFlowRole"),
            "EmrManagedMasterSecurityGroup": (self.master_groups or [None])[0],
            "EmrManagedSlaveSecurityGroup": (self.slave_groups or [None])[0],
            "ServiceAccessSecurityGroup": self.service_group or None,
            "AdditionalMasterSecurityGroups": instances.get("AdditionalMasterSecurityGroups") or [],
            "AdditionalSlaveSecurityGroups": instances.get("AdditionalSlaveSecurityGroups") or [],
        }
