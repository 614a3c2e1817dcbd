"""Find resources by a cluster's name and tag alone: those that no stack has recorded, or has forgotten."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from phalanx.clouds import lustre_file_systems
from phalanx.clouds.protocol import CLUSTER_TAG

# CloudFormation shortens a stack's name in longer names of functions, but never this much.
_PREFIX = 20
LOGICAL_IDS = {
    "queue": ("HeadQueue",),
    "table": ("RosterTable",),
    "topic": ("FleetTopic",),
    "log group": ("LogGroup",),
}
"""The template's logical ids, by kind: CloudFormation makes names of the form NAME-LOGICALID-RANDOM of them."""


class Api(Protocol):
    region: str

    def exists(self, service: str, operation: str, **arguments: Any) -> dict[str, Any] | None: ...
    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]: ...


def find(api: Api, cluster: str) -> Iterator[str]:
    """Yield a readable line for each resource that has the cluster's tag, or a name that its stack made.

    Roles and instance profiles belong to no region: another region's cluster of this name may own those with its name.
    Only the role that outlives a removed stack has its region in its path.
    """
    for look in (_groups, _launch_templates, _functions, _named, _roles, _lustre):
        yield from look(api, cluster)


def _groups(api: Api, cluster: str) -> Iterator[str]:
    tagged = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]}]
    names = [f"{cluster}-head", f"{cluster}-workers"]
    for which in ({"Filters": tagged}, {"AutoScalingGroupNames": names}):
        groups = list(api.pages("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", **which))
        if groups:
            yield from (f"Auto Scaling group {group['AutoScalingGroupName']}" for group in groups)
            return


def _launch_templates(api: Api, cluster: str) -> Iterator[str]:
    tagged = [{"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]}]
    for template in api.pages("ec2", "describe_launch_templates", "LaunchTemplates", Filters=tagged):
        yield f"launch template {template['LaunchTemplateId']}"


def _functions(api: Api, cluster: str) -> Iterator[str]:
    for function in api.pages("lambda", "list_functions", "Functions"):
        if function["FunctionName"].startswith(cluster[:_PREFIX]):
            # A list may still have a function that was deleted a moment ago.
            found = api.exists("lambda", "list_tags", Resource=function["FunctionArn"]) or {"Tags": {}}
            if found["Tags"].get(CLUSTER_TAG) == cluster:
                yield f"function {function['FunctionName']}"


def _roles(api: Api, cluster: str) -> Iterator[str]:
    for role in api.pages("iam", "list_roles", "Roles", PathPrefix=f"/phalanx/{api.region}/"):
        if role["RoleName"].startswith(cluster[:_PREFIX]):
            found = api.exists("iam", "list_role_tags", RoleName=role["RoleName"]) or {"Tags": []}
            if {"Key": CLUSTER_TAG, "Value": cluster} in found["Tags"]:
                yield f"role {role['RoleName']}"


def _named(api: Api, cluster: str) -> Iterator[str]:
    listings: dict[str, Callable[[], Iterator[str]]] = {
        "queue": lambda: _last(api.pages("sqs", "list_queues", "QueueUrls", QueueNamePrefix=f"{cluster}-"), "/"),
        "table": lambda: api.pages("dynamodb", "list_tables", "TableNames"),
        "topic": lambda: _last((topic["TopicArn"] for topic in api.pages("sns", "list_topics", "Topics")), ":"),
        "log group": lambda: _field(
            api.pages("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=f"{cluster}-"), "logGroupName"
        ),
    }
    for kind, names in listings.items():
        made = re.compile(f"{re.escape(cluster)}-(?:{'|'.join(LOGICAL_IDS[kind])})-[A-Za-z0-9]{{8,}}")
        yield from (f"{kind} {name}" for name in names() if made.fullmatch(name))


def _lustre(api: Api, cluster: str) -> Iterator[str]:
    for found, name in lustre_file_systems.tagged(api):
        if name == cluster:
            yield f"Lustre file system {found['FileSystemId']} ({found['Lifecycle']})"


def _last(names: Iterator[str], separator: str) -> Iterator[str]:
    """Yield the names at the ends of URLs or ARNs."""
    return (name.rpartition(separator)[2] for name in names)


def _field(entries: Iterator[dict[str, Any]], key: str) -> Iterator[str]:
    return (entry[key] for entry in entries)
