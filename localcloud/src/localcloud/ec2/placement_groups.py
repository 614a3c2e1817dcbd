"""EC2's placement groups, which moto lacks: what the API says of them, and which launches EC2 refuses.

All instances are on this machine, so that a group's strategy has no effect on the network here.
Source: EC2 API reference, CreatePlacementGroup; docs/aws-behaviour.md 2.13, 2.35.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Instance
from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX

from localcloud.context import Context

PATCHED = (
    "moto.ec2.responses.EC2Response",
    "moto.ec2.utils.EC2_PREFIX_TO_RESOURCE",
    "moto.ec2.utils.EC2_RESOURCE_TO_PREFIX",
)
_TYPE, _PREFIX = "placement-group", "pg"
STRATEGIES = ("cluster", "partition", "spread")


@dataclass(frozen=True)
class PlacementGroup:
    """A placement group of a region; `describe` returns what the API says of it."""

    name: str
    strategy: str
    tags: dict[str, str]
    group_id: str = field(default_factory=lambda: f"{_PREFIX}-{secrets.token_hex(8)}1")

    def describe(self) -> dict[str, Any]:
        tags = [{"Key": key, "Value": value} for key, value in self.tags.items()]
        return {
            "GroupName": self.name,
            "GroupId": self.group_id,
            "State": "available",
            "Strategy": self.strategy,
            "Tags": tags,
        }


_groups: dict[tuple[str, str], PlacementGroup] = {}


def install(_context: Context) -> None:
    """Forget the groups of an earlier local cloud in this process, and add the operations to moto's EC2.

    With the prefix of their ids, the operations on tags know groups, too.
    """
    _groups.clear()
    EC2_RESOURCE_TO_PREFIX[_TYPE], EC2_PREFIX_TO_RESOURCE[_PREFIX] = _PREFIX, _TYPE
    for name, operation in (
        ("create_placement_group", _create),
        ("describe_placement_groups", _describe),
        ("delete_placement_group", _delete),
    ):
        setattr(EC2Response, name, operation)


def of_region(region: str) -> list[PlacementGroup]:
    return [one for (where, _), one in list(_groups.items()) if where == region]


def create(backend: EC2Backend, name: str, strategy: str, tags: Mapping[str, str]) -> PlacementGroup:
    """Make a group. Raises EC2ClientError as EC2 does."""
    if exists(backend, name):
        raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    if strategy not in STRATEGIES:
        raise EC2ClientError("InvalidParameterValue", f"Value ({strategy}) for parameter strategy is invalid.")
    made = _groups[backend.region_name, name] = PlacementGroup(name, strategy, dict(tags))
    # The same mapping: CreateTags and DeleteTags change it.
    backend.tags[made.group_id] = made.tags
    return made


def exists(backend: EC2Backend, name: str) -> bool:
    return (backend.region_name, name) in _groups


def delete(backend: EC2Backend, name: str) -> None:
    """Delete a group. Raises EC2ClientError while instances are in it, or if there is none."""
    group = find(backend.region_name, name)
    instances = [instance for reservation in backend.reservations.values() for instance in reservation.instances]
    if any(_group_of(instance) == name for instance in instances if instance.state != "terminated"):
        raise EC2ClientError(
            "InvalidPlacementGroup.InUse", f"The placement group {name} is in use and may not be deleted."
        )
    del _groups[backend.region_name, name]
    backend.tags.pop(group.group_id, None)


def put(instance: Instance, name: str) -> None:
    """Record that an instance is in the group."""
    setattr(instance.placement, "group_name", name)  # noqa: B010 (moto's placement lacks it)


def require(region: str, name: str, instance_type: str) -> None:
    """Raise EC2ClientError unless an instance of this type may be launched into the group."""
    group = find(region, name)
    supported = INSTANCE_TYPES.get(instance_type, {}).get("PlacementGroupInfo", {}).get("SupportedStrategies", [])
    if group.strategy not in supported:
        raise EC2ClientError(
            "InvalidParameterCombination",
            f"{group.strategy.title()} placement groups are not supported by the '{instance_type}' instance type. "
            "Specify a supported instance type or change the placement group strategy, and try again.",
        )


def find(region: str, name: str) -> PlacementGroup:
    """Return a group. Raises EC2ClientError if there is none."""
    if (region, name) not in _groups:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    return _groups[region, name]


def _group_of(instance: Instance) -> str:
    return getattr(instance.placement, "group_name", None) or ""


def _create(self: Any) -> ActionResult:
    tags = self._parse_tag_specification("placement-group").get("placement-group", {})
    made = create(self.ec2_backend, self._get_param("GroupName"), self._get_param("Strategy", "cluster"), tags)
    return ActionResult({"PlacementGroup": made.describe()})


def _describe(self: Any) -> ActionResult:
    filters = self._filters_from_querystring()
    names = self._get_param("GroupNames", [])
    shown = [
        group.describe()
        for (region, name), group in _groups.items()
        if region == self.region and (not names or name in names) and _matches(group, filters)
    ]
    if missing := [name for name in names if name not in [group["GroupName"] for group in shown]]:
        find(self.region, missing[0])
    return ActionResult({"PlacementGroups": shown})


def _delete(self: Any) -> ActionResult:
    delete(self.ec2_backend, self._get_param("GroupName"))
    return ActionResult({"Return": True})


def _matches(group: PlacementGroup, filters: Mapping[str, list[str]]) -> bool:
    values = {"group-name": group.name, "strategy": group.strategy, "state": "available"}
    values |= {f"tag:{key}": value for key, value in group.tags.items()}
    return all(values.get(name) in wanted for name, wanted in filters.items())
