"""Find resources only by a cluster's name and tag: those that no stack has recorded, or has forgotten."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from phalanx.aws import lustre_file_systems, tags
from phalanx.aws.refusals import is_denied
from phalanx.errors import CloudError
from phalanx.spec.own_tags import CLUSTER_TAG

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# CloudFormation shortens a stack's name in longer names (docs/aws-behaviour.md 3.30), but never this much.
_PREFIX = 20
LOGICAL_IDS = {
    "queue": ("HeadQueue",),
    "table": ("RosterTable",),
    "topic": ("FleetTopic",),
    "log group": ("LogGroup",),
    "function": ("Function",),
    "rule": ("RemovalRule",),
    "role": ("RemovalRole",),
}
"""The template's logical ids, by kind: CloudFormation makes names of the form NAME-LOGICALID-RANDOM of them.

Of the roles, it has the one whose path says its region.
"""


def _form(*kinds: str) -> re.Pattern[str]:
    titles = "|".join(logical_id for kind in kinds for logical_id in LOGICAL_IDS[kind])
    return re.compile(rf"(?P<cluster>.+)-(?:{titles})-[A-Za-z0-9]{{8,}}")


FORM = _form("queue", "table", "topic", "log group")
"""The form of names that alone say which cluster it is."""
WITH_TAGS = _form("function", "rule", "role")
"""The form of names in which CloudFormation may have shortened the cluster's: their tags say which it is."""
_REMOVAL = _form("rule", "role")
STACK_TAG = "aws:cloudformation:stack-name"


@dataclass(frozen=True)
class Listed:
    """A resource as its service lists it: without its tags, which are read when somebody wants to know."""

    kind: str
    name: str
    read_tags: Callable[[], Mapping[str, str] | None]

    def cluster(self) -> str:
        """Return whose it is by its tags or else, as one of a stack without tags, by its name.

        "" if it is gone, or somebody else's.
        """
        tags = self.read_tags()
        made = _REMOVAL.fullmatch(self.name)
        if tags is None or CLUSTER_TAG in tags or not made:
            return (tags or {}).get(CLUSTER_TAG, "")
        return tags.get(STACK_TAG) or made["cluster"]


@dataclass(frozen=True)
class ListedFunction(Listed):
    """A function. Its name proves nothing: others' stacks have the logical id Function, too."""

    removals: Callable[[], Collection[str]]

    def cluster(self) -> str:
        """Return whose it is by its tag or else, as one of a stack without tags, by what only a cluster's stack has."""
        tags = self.read_tags() or {}
        stack = tags.get(STACK_TAG, "")
        return tags.get(CLUSTER_TAG) or (stack if stack and stack in self.removals() else "")


def listed(api: Aws, start: str = "") -> Iterator[Listed]:
    """Yield functions, rules and this region's own roles whose names start like this."""
    made = [one for one in (*_rules(api, start), *roles(api)) if one.name.startswith(start)]
    yield from made
    removals = cache(lambda: {one.cluster() for one in made})
    for name, read_tags in _functions(api):
        if name.startswith(start):
            yield ListedFunction("function", name, read_tags, removals)


def _groups(api: Aws, cluster: str) -> Iterator[str]:
    names = [f"{cluster}-head", f"{cluster}-workers"]
    for which in ({"Filters": tags.filters(cluster)}, {"AutoScalingGroupNames": names}):
        found = api.pages("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", **which)
        groups = [one for one in found if tags.is_of(one, cluster) or one["AutoScalingGroupName"] in names]
        if groups:
            yield from (f"Auto Scaling group {group['AutoScalingGroupName']}" for group in groups)
            return


def _launch_templates(api: Aws, cluster: str) -> Iterator[str]:
    for template in api.pages("ec2", "describe_launch_templates", "LaunchTemplates", Filters=tags.filters(cluster)):
        if tags.is_of(template, cluster):
            yield f"launch template {template['LaunchTemplateId']}"


def _listed_ones(api: Aws, cluster: str) -> Iterator[str]:
    for one in listed(api, cluster[:_PREFIX]):
        if one.cluster() == cluster:
            yield f"{one.kind} {one.name}"


def _functions(api: Aws) -> Iterator[tuple[str, Callable[[], Mapping[str, str] | None]]]:
    """Yield the name of each, and what reads its tags: a list may still have one that was deleted a moment ago."""
    for found in api.pages("lambda", "list_functions", "Functions"):
        yield found["FunctionName"], partial(_tags_of_function, api, found["FunctionArn"])


def _tags_of_function(api: Aws, arn: str) -> Mapping[str, str] | None:
    found = _read(api, "lambda", "list_tags", Resource=arn)
    return found and found.get("Tags", {})


def _rules(api: Aws, start: str) -> Iterator[Listed]:
    for found in api.pages("events", "list_rules", "Rules", **({"NamePrefix": start} if start else {})):
        yield Listed("rule", found["Name"], partial(_tags_of_rule, api, found["Arn"]))


def _tags_of_rule(api: Aws, arn: str) -> Mapping[str, str] | None:
    return _as_mapping(_read(api, "events", "list_tags_for_resource", ResourceARN=arn))


def roles(api: Aws) -> Iterator[Listed]:
    """Yield this region's own roles."""
    for found in api.pages("iam", "list_roles", "Roles", PathPrefix=f"/phalanx/{api.region}/"):
        yield Listed("role", found["RoleName"], partial(_tags_of_role, api, found["RoleName"]))


def _tags_of_role(api: Aws, name: str) -> Mapping[str, str] | None:
    return _as_mapping(_read(api, "iam", "list_role_tags", RoleName=name))


def _read(api: Aws, service: str, operation: str, **arguments: Any) -> dict[str, Any] | None:
    """Return a resource's tags; None if it is gone, or if a policy for one cluster does not allow it for this one."""
    try:
        return api.exists(service, operation, **arguments)
    except CloudError as error:
        if not (isinstance(error.__cause__, Exception) and is_denied(error.__cause__)):
            raise
        return None


def _as_mapping(answer: Mapping[str, Any] | None) -> Mapping[str, str] | None:
    return answer and {tag["Key"]: tag["Value"] for tag in answer.get("Tags", [])}


def _named(kind: str, names: Callable[[Aws, str], Iterator[str]], api: Aws, cluster: str) -> Iterator[str]:
    made = re.compile(f"{re.escape(cluster)}-(?:{'|'.join(LOGICAL_IDS[kind])})-[A-Za-z0-9]{{8,}}")
    yield from (f"{kind} {name}" for name in names(api, cluster) if made.fullmatch(name))


def _queues(api: Aws, cluster: str) -> Iterator[str]:
    return _last(api.pages("sqs", "list_queues", "QueueUrls", QueueNamePrefix=f"{cluster}-"), "/")


def _tables(api: Aws, _cluster: str) -> Iterator[str]:
    return api.pages("dynamodb", "list_tables", "TableNames")


def _topics(api: Aws, _cluster: str) -> Iterator[str]:
    return _last((topic["TopicArn"] for topic in api.pages("sns", "list_topics", "Topics")), ":")


def _log_groups(api: Aws, cluster: str) -> Iterator[str]:
    found = api.pages("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=f"{cluster}-")
    return (group["logGroupName"] for group in found)


def _lustre(api: Aws, cluster: str) -> Iterator[str]:
    for found, name in lustre_file_systems.tagged(api):
        if name == cluster:
            yield f"Lustre file system {found['FileSystemId']} ({found['Lifecycle']})"


def _last(names: Iterator[str], separator: str) -> Iterator[str]:
    """Yield the names at the ends of URLs or ARNs."""
    return (name.rpartition(separator)[2] for name in names)


LOOKS = (
    *(_groups, _launch_templates, _listed_ones),
    *(
        partial(_named, kind, names)
        for kind, names in (
            *(("queue", _queues), ("table", _tables)),
            *(("topic", _topics), ("log group", _log_groups)),
        )
    ),
    _lustre,
)
"""Each yields a readable line for what has the cluster's tag, or a name that its stack made.

Roles and instance profiles belong to no region: another region's cluster of this name may own those with its name. Only
the role that outlives a removed stack has its region in its path.
"""
