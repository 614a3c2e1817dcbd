"""Creates, updates and deletes groups, given API parameters or CloudFormation properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moto.autoscaling.exceptions import AutoscalingClientError, ValidationError

from localcloud.autoscaling import activity, launching
from localcloud.autoscaling.group import Group, Notify, already_exists
from localcloud.autoscaling.reconciler import Reconciler
from localcloud.context import Context
from localcloud.weather import organisation

_SETTINGS = (
    "CapacityReservationSpecification",
    "DefaultCooldown",
    "HealthCheckGracePeriod",
    "HealthCheckType",
    "PlacementGroup",
    "TerminationPolicies",
)
_UNSUPPORTED = (
    "InstanceId",
    "LaunchConfigurationName",
    "LifecycleHookSpecificationList",
    "LoadBalancerNames",
    "MixedInstancesPolicy",
    "TargetGroupARNs",
    "TrafficSources",
)


def create(
    worker: Reconciler, region: str, name: str, wanted: Mapping[str, Any], settled: Notify | None = None
) -> Group:
    """Create a group; the worker launches its instances. Raises ValidationError or AlreadyExists as AWS does."""
    _refuse_unsupported(wanted)
    organisation.check_group(worker.context, region)
    group = _build(worker.context, region, name, wanted)
    launching.check(group)
    with worker.lock:
        if (region, name) in worker.groups:
            raise already_exists(name)
        group.settled = settled
        worker.groups[region, name] = group
        worker.touch(group)
    return group


def update(
    worker: Reconciler, region: str, name: str, wanted: Mapping[str, Any], settled: Notify | None = None
) -> Group:
    """Change the settings that `wanted` names. Raises ValidationError."""
    _refuse_unsupported(wanted)
    with worker.lock:
        group = find(worker, region, name, is_changed=True)
        if group.deleting:
            raise ValidationError(f"AutoScalingGroup '{name}' is pending delete")
        _resize(worker.context, group, wanted)
        _replace_settings(group, wanted)
        group.settled = settled or group.settled
        worker.resized(group)
    return group


def delete(worker: Reconciler, region: str, name: str, *, force: bool, gone: Notify | None = None) -> None:
    """Delete a group; with `force`, terminate even protected members.

    Without `force` or a `gone` to call later, a group with members is refused: ResourceInUse.
    """
    with worker.lock:
        group = find(worker, region, name)
        if group.members and not force and gone is None:
            raise AutoscalingClientError(
                "ResourceInUse",
                "You cannot delete an AutoScalingGroup while there are instances or pending Spot instance request(s)"
                " still in the group.",
            )
        group.deleting, group.forced = True, force
        # The maximum too: nobody can request instances from a group that is being deleted.
        group.minimum = group.maximum = group.desired = 0
        group.cancel_schedule()
        group.settled = None
        group.gone += [gone] if gone else []
        worker.resized(group)


def find(worker: Reconciler, region: str, name: str, *, is_changed: bool = False) -> Group:
    """Return the group with this name. Raises ValidationError when there is none.

    For a change of its size, Auto Scaling's message does not name it (docs/aws-behaviour.md 3.25).
    """
    group = worker.groups.get((region, name))
    if group is None:
        named = "null" if is_changed else f"AutoScalingGroup '{name}' not found"
        raise ValidationError(f"AutoScalingGroup name not found - {named}")
    return group


def find_member(worker: Reconciler, region: str, instance_id: str) -> Group:
    """Return the group of an instance. Raises ValidationError when it has none."""
    for group in worker.groups.values():
        if group.region == region and instance_id in group.members:
            return group
    raise ValidationError(f"Instance Id not found - No managed instance found for instance ID: {instance_id}")


def _build(context: Context, region: str, name: str, wanted: Mapping[str, Any]) -> Group:
    if "LaunchTemplate" not in wanted:
        raise ValidationError(
            "Valid requests must contain either LaunchTemplate, LaunchConfigurationName, InstanceId or"
            " MixedInstancesPolicy parameter."
        )
    minimum, maximum = int(wanted["MinSize"]), int(wanted["MaxSize"])
    desired = minimum if wanted.get("DesiredCapacity") is None else int(wanted["DesiredCapacity"])
    subnets = _subnets(context.account, region, wanted)
    now = context.clock.now()
    group = Group(
        name=name,
        region=region,
        account=context.account,
        minimum=minimum,
        maximum=maximum,
        desired=desired,
        template=launching.resolve(context.account, region, wanted["LaunchTemplate"]),
        subnets=subnets,
        zones=launching.places(context.account, region, subnets),
        created=now,
        why=activity.created(now, desired),
    )
    group.set_bounds(minimum, maximum, desired)
    _replace_settings(group, wanted)
    return group


def _resize(context: Context, group: Group, wanted: Mapping[str, Any]) -> None:
    minimum = int(wanted.get("MinSize", group.minimum))
    maximum = int(wanted.get("MaxSize", group.maximum))
    before = group.desired
    # An update without a desired capacity keeps the current one, clamped to the new bounds.
    given = wanted.get("DesiredCapacity")
    desired = max(minimum, min(before, maximum)) if given is None else int(given)
    group.set_bounds(minimum, maximum, desired)
    if desired != before:
        group.why = activity.constraints_updated(context.clock.now(), (minimum, maximum, desired), before)


def _replace_settings(group: Group, wanted: Mapping[str, Any]) -> None:
    if wanted.get("LaunchTemplate"):
        group.template = launching.resolve(group.account, group.region, wanted["LaunchTemplate"])
    if wanted.get("VPCZoneIdentifier") or wanted.get("AvailabilityZones"):
        group.subnets = _subnets(group.account, group.region, wanted)
        group.zones = launching.places(group.account, group.region, group.subnets)
    if wanted.get("NewInstancesProtectedFromScaleIn") is not None:
        group.protect_new = str(wanted["NewInstancesProtectedFromScaleIn"]).lower() == "true"
    group.set_tags(wanted.get("Tags") or [])
    group.settings.update({name: wanted[name] for name in _SETTINGS if wanted.get(name) is not None})


def _subnets(account: str, region: str, wanted: Mapping[str, Any]) -> list[str]:
    """Return the subnets, or those of the default VPC in the zones that are wanted.

    The API accepts one string with commas, CloudFormation a list.
    """
    given = wanted.get("VPCZoneIdentifier") or []
    if not given and wanted.get("AvailabilityZones"):
        return launching.default_subnets(account, region, wanted["AvailabilityZones"])
    return [part.strip() for part in given.split(",")] if isinstance(given, str) else list(given)


def _refuse_unsupported(wanted: Mapping[str, Any]) -> None:
    for name in _UNSUPPORTED:
        if wanted.get(name):
            raise ValidationError(f"{name} is not supported by the local cloud's Auto Scaling groups.")
