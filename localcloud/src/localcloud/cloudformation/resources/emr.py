"""AWS::EMR::Cluster: a cluster of nodes, complete when it is ready."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from localcloud import emr
from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources.network import truth
from localcloud.cloudformation.resources.registry import Made, Request, resource
from localcloud.emr.records import Cluster

# Property → the role of its groups. CloudFormation's names for what RunJobFlow has as one list.
_GROUPS = {"MasterInstanceGroup": "MASTER", "CoreInstanceGroup": "CORE", "TaskInstanceGroups": "TASK"}
_FLEETS = ("MasterInstanceFleet", "CoreInstanceFleet", "TaskInstanceFleets")
_FLAGS = ("KeepJobFlowAliveWhenNoSteps", "TerminationProtected")


def _delete(request: Request, physical_id: str) -> bool:
    return emr.delete(physical_id, request.settled)


@resource("AWS::EMR::Cluster", _delete, "Id MasterPublicDNS")
def _cluster(request: Request) -> Made:
    properties = dict(request.properties)
    properties["Instances"] = _instances(properties["Instances"])
    # Without the stack's tags: the type's schema does not say that it is taggable (docs/aws-behaviour.md 1.25).
    cluster = emr.create(request.region, properties, request.settled)
    return Made(cluster.id, _Attributes(cluster), pending=True)


class _Attributes(Mapping[str, str]):
    """The attributes of a cluster, whose master is launched after the resource was made."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __getitem__(self, name: str) -> str:
        master = self._cluster.master
        return {"Id": self._cluster.id, "MasterPublicDNS": master.dns_name if master else ""}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("Id", "MasterPublicDNS"))

    def __len__(self) -> int:
        return 2


def _instances(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of instances as RunJobFlow takes them."""
    if fleets := [name for name in _FLEETS if name in given]:
        raise ResourceFailed(f"The local cloud's EMR clusters do not support {', '.join(fleets)}")
    groups = []
    for name, role in _GROUPS.items():
        found = given.get(name) or []
        groups += [{**one, "InstanceRole": role} for one in (found if isinstance(found, list) else [found])]
    flags = {name: truth(given[name]) for name in _FLAGS if name in given}
    others = {name: value for name, value in given.items() if name not in _GROUPS}
    return {**others, **flags, "InstanceGroups": groups}
