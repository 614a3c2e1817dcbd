"""The machines: a launch template and an Auto Scaling group for the head, and another pair for the workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from troposphere import GetAtt, If, NoValue, Ref, Template, autoscaling, ec2
from troposphere.policies import AutoScalingScheduledAction, UpdatePolicy

from phalanx.node.settings import FORMAT, ON_AWS, Patience
from phalanx.plan.capacity import RESERVED, SPOT, bought
from phalanx.plan.network_cards import PLAIN, Card, adapters, layout
from phalanx.plan.plan import Plan
from phalanx.spec.own_tags import CLUSTER_TAG
from phalanx.spec.spec_data import as_setting
from phalanx.spec.spec_limits import OWN_GROUP
from phalanx.template import storage, userdata
from phalanx.template.naming import FILE_SYSTEM, HEAD_GROUP, WORKERS_GROUP, name_tag, own_tags
from phalanx.template.network import dependencies, head_subnet
from phalanx.template.rendezvous import handle_name, node_dependencies

# An update must not undo `phalanx scale`, nor start a cluster that is stopped (docs/aws-behaviour.md 1.9).
_LEAVE_SIZES = AutoScalingScheduledAction(IgnoreUnmodifiedGroupSizeProperties=True)
_EVENTS = ("LAUNCH", "LAUNCH_ERROR", "TERMINATE")
_VOLUME = {"size_gib": "VolumeSize", "type": "VolumeType", "iops": "Iops", "throughput_mib_s": "Throughput"}


def add_to(template: Template, plan: Plan) -> None:
    for resource in (
        *_placement_group(plan),
        _launch_template("Head", plan, *_groups_of_head(plan)),
        _launch_template("Worker", plan, "NodeSecurityGroup"),
        _workers_group(plan),
        _head_group(plan),
        *_leases(),
    ):
        template.add_resource(resource)


def _head_group(plan: Plan) -> autoscaling.AutoScalingGroup:
    """Make the head's group of one, which replaces a lost head. Its least size lets an idle cluster stop (node.limits).

    CloudFormation waits for the desired capacity, whatever the least size is (docs/aws-behaviour.md 1.2).
    """
    return _group(
        "HeadGroup",
        "Head",
        HEAD_GROUP,
        head_subnet(plan),
        MinSize="0",
        MaxSize="1",
        DesiredCapacity="1",
        DependsOn="WorkersGroup",
        **_reserved(plan, "head"),
    )


def _workers_group(plan: Plan) -> autoscaling.AutoScalingGroup:
    """Make the workers' group, empty: CloudFormation never waits or fails for a worker, and the head raises its size.

    See docs/aws-behaviour.md 1.1. DesiredCapacity is left out, so MinSize applies: a stack update would set it again
    (1.9). MaxSize bounds what root on the head can launch; for a head alone it is 0 (3.26). Instances are not protected
    from scale-in: CloudFormation empties a group to delete it, and protected instances would stay (3.22). The
    termination policy is NewestInstance: when a missing worker arrives just as the head gives up on it, no member is
    terminated.
    """
    return _group(
        "WorkersGroup",
        "Worker",
        WORKERS_GROUP,
        "PrivateSubnet",
        MinSize="0",
        MaxSize=Ref("Workers"),
        TerminationPolicies=["NewestInstance"],
        DependsOn=[*dependencies(plan), *node_dependencies(plan)],
        **_reserved(plan, "worker"),
    )


def _groups_of_head(plan: Plan) -> list[str]:
    return ["NodeSecurityGroup", *([] if plan.spec.is_private else ["HeadSecurityGroup"])]


def _leases() -> list[autoscaling.ScheduledAction]:
    """Make the end of the lease: Auto Scaling lowers both groups to 0, whatever any node does (aws-behaviour 3.40)."""
    return [
        autoscaling.ScheduledAction(
            f"{role}Lease",
            Condition="HasLease",
            AutoScalingGroupName=Ref(f"{role}Group"),
            StartTime=Ref("LeaseEnd"),
            MinSize=0,
            MaxSize=0,
            DesiredCapacity=0,
        )
        for role in ("Head", "Workers")
    ]


def _group(title: str, role: str, name: Any, subnet: str, **sizes: Any) -> autoscaling.AutoScalingGroup:
    template = f"{role}LaunchTemplate"
    return autoscaling.AutoScalingGroup(
        title,
        AutoScalingGroupName=name,
        VPCZoneIdentifier=[Ref(subnet)],
        LaunchTemplate=autoscaling.LaunchTemplateSpecification(
            LaunchTemplateId=Ref(template), Version=GetAtt(template, "LatestVersionNumber")
        ),
        NotificationConfigurations=[
            autoscaling.NotificationConfigurations(
                TopicARN=Ref("FleetTopic"), NotificationTypes=[f"autoscaling:EC2_INSTANCE_{event}" for event in _EVENTS]
            )
        ],
        Tags=_propagated_tags(name),
        UpdatePolicy=UpdatePolicy(AutoScalingScheduledAction=_LEAVE_SIZES),
        **sizes,
    )


def _propagated_tags(name: Any) -> list[dict[str, Any]]:
    wanted = {CLUSTER_TAG: Ref("AWS::StackName"), "Name": name}
    return [{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in wanted.items()]


def _launch_template(role: str, plan: Plan, *groups: str) -> ec2.LaunchTemplate:
    data = ec2.LaunchTemplateData(
        ImageId=Ref("Image"),
        InstanceType=_instance_type(role, plan),
        KeyName=If("HasKeyPair", Ref("KeyPair"), NoValue),
        IamInstanceProfile=ec2.IamInstanceProfile(Arn=GetAtt(f"{role}InstanceProfile", "Arn")),
        MetadataOptions=_metadata(),
        BlockDeviceMappings=[_root_volume(plan)],
        TagSpecifications=[ec2.TagSpecifications(ResourceType="volume", Tags=own_tags(plan))],
        UserData=userdata.user_data(config(role.lower(), plan), plan.spec.boot),
        **_network(role, plan, groups),
        **(_placement(plan) if plan.trains(role) else {}),
        **_market(plan, role.lower()),
    )
    # The stack's tags do not reach launch templates (docs/aws-behaviour.md 1.25).
    tags = ec2.TagSpecifications(ResourceType="launch-template", Tags=own_tags(plan))
    return ec2.LaunchTemplate(f"{role}LaunchTemplate", LaunchTemplateData=data, TagSpecifications=[tags])


def _metadata() -> ec2.MetadataOptions:
    """Return all options: an account's defaults may turn off what a launch leaves open (docs/aws-behaviour.md 2.3)."""
    return ec2.MetadataOptions(
        HttpEndpoint="enabled", HttpProtocolIpv6="disabled", HttpPutResponseHopLimit=1, HttpTokens="required"
    )


def _market(plan: Plan, role: str) -> dict[str, Any]:
    """Return the market of a launch template; a Capacity Block has one of its own (docs/aws-behaviour.md 2.14)."""
    way = bought(plan.spec, role)
    kind = "spot" if way == SPOT else "capacity-block" if way == RESERVED and _block(plan) else ""
    return {"InstanceMarketOptions": ec2.InstanceMarketOptions(MarketType=kind)} if kind else {}


def _block(plan: Plan) -> str:
    """Return the id of the Capacity Block that the cluster uses, or ""."""
    reservation = plan.facts.reservation
    return reservation.reservation_id if reservation and reservation.is_block else ""


def _reserved(plan: Plan, role: str) -> dict[str, Any]:
    """Return a group's target, with which it launches only in the reservation (docs/aws-behaviour.md 2.15)."""
    if bought(plan.spec, role) != RESERVED:
        return {}
    target = autoscaling.CapacityReservationTarget(CapacityReservationIds=[plan.spec.reservation])
    only = autoscaling.CapacityReservationSpecification(
        CapacityReservationPreference="capacity-reservations-only", CapacityReservationTarget=target
    )
    return {"CapacityReservationSpecification": only}


def _instance_type(role: str, plan: Plan) -> Any:
    return Ref("InstanceType") if plan.trains(role) or not plan.spec.head else plan.spec.head["type"]


def _network(role: str, plan: Plan, groups: Sequence[str]) -> dict[str, Any]:
    """Return a node's security groups, or its interfaces, which then have the groups (docs/aws-behaviour.md 2.4)."""
    cards = plan.facts.cards if plan.spec.uses_efa and plan.trains(role) else ()
    if not cards and not plan.needs_public_address(role):
        return {"SecurityGroupIds": [Ref(group) for group in groups]}
    found = _interfaces(cards or PLAIN, groups)
    if plan.needs_public_address(role):
        found[0].AssociatePublicIpAddress = True
    return {"NetworkInterfaces": found}


def _placement(plan: Plan) -> dict[str, Any]:
    if not plan.spec.placement:
        return {}
    group = Ref("PlacementGroup") if plan.spec.placement == OWN_GROUP else plan.spec.placement
    return {"Placement": ec2.Placement(GroupName=group)}


def _placement_group(plan: Plan) -> list[ec2.PlacementGroup]:
    wanted = plan.spec.placement == OWN_GROUP
    return [ec2.PlacementGroup("PlacementGroup", Strategy="cluster", Tags=name_tag())] if wanted else []


def _root_volume(plan: Plan) -> ec2.LaunchTemplateBlockDeviceMapping:
    """Make the root volume as the spec wants it; without a size it is as large as the image's."""
    wanted = plan.spec.disk or {}
    chosen = {_VOLUME[key]: value for key, value in wanted.items()}
    volume = ec2.EBSBlockDevice(**{"Encrypted": True, "VolumeType": "gp3", "DeleteOnTermination": True, **chosen})
    return ec2.LaunchTemplateBlockDeviceMapping(DeviceName=Ref("RootDevice"), Ebs=volume)


def _has_adapters(plan: Plan, role: str) -> bool:
    """The local cloud has none: there the interfaces are checked and have no effect."""
    return plan.spec.uses_efa and plan.spec.cloud == "aws" and plan.trains(role)


def config(role: str, plan: Plan) -> dict[str, Any]:
    """Return the agent's settings for a `role`, head or worker. They hold no secrets: launch templates are not private.

    The stack's id contains its name, from which the workers' group is named, and the region.
    """
    return {
        "format": str(FORMAT),
        "stack_id": Ref("AWS::StackId"),
        "domain": Ref("AWS::URLSuffix"),
        "role": role,
        "queue_url": Ref("HeadQueue"),
        "table": Ref("RosterTable"),
        "log_group": Ref("LogGroup"),
        "job_role": GetAtt("JobRole", "Arn"),
        "workers": Ref("Workers"),
        "min": Ref("MinNodes"),
        "node_timeout_s": Ref("NodeTimeout"),
        "slots": Ref("Slots") if plan.trains(role) else "-1",
        "efa": str(adapters(plan.facts.cards)) if _has_adapters(plan, role) else "",
        "metrics": "1" if plan.spec.sends_metrics else "",
        "gpus": f"{plan.spec.type}={plan.facts.gpus}" if plan.gpus else "",
        "block": _block(plan),
        "shared": Ref("SharedDirectory"),
        "file_system": FILE_SYSTEM if plan.uses_efs else storage.lustre_place(plan) or plan.storage,
        "ssh_public_key": Ref("SshPublicKey"),
        "wait_handle": Ref(handle_name(plan)) if role == "head" else "",
        "networks": Ref("Networks") if plan.facts.vpc else ",".join(plan.networks),
        "worker_role": GetAtt("WorkerRole", "RoleId") if role == "head" else "",
        "address": GetAtt("HeadAddress", "AllocationId") if role == "head" and not plan.spec.is_private else "",
        **({"tls": "1"} if plan.spec.tls else {}),
        **({"offline": "1"} if plan.is_offline else {}),
        **({"linked": storage.linked_prefixes(plan)} if plan.makes_lustre else {}),
        **({"data": data} if (data := as_setting(plan.spec.data)) else {}),
        **_patience(plan.facts.patience),
    }


def _patience(patience: Patience) -> dict[str, str]:
    """Return the agent's times for a rehearsal. Those for AWS are in the agent, and take none of user data's bytes."""
    if patience == ON_AWS:
        return {}
    return {"patience": ",".join(f"{name}={wait_s:g}" for name, wait_s in patience._asdict().items())}


def _interfaces(cards: Sequence[Card], groups: Sequence[str]) -> list[ec2.NetworkInterfaces]:
    """Return the interfaces of a launch template, each in these security groups."""
    return [
        ec2.NetworkInterfaces(
            NetworkCardIndex=card, DeviceIndex=device, InterfaceType=kind, Groups=[Ref(group) for group in groups]
        )
        for card, device, kind in layout(cards)
    ]
