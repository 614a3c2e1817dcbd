"""Find what is left in a region of clusters whose stack is gone, or failed and was left behind.

AWS's index of the tags of all services names the clusters, and each service confirms what is left of them: the index is
late, and shows what was deleted (docs/aws-behaviour.md 13).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from phalanx.aws import change_sets, lustre_file_systems, stacks, tags
from phalanx.aws.inventory import remains, strays
from phalanx.errors import CloudError
from phalanx.spec.own_tags import CLUSTER_TAG

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_LIVES = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")
# A stack from the console that failed has neither a tag nor outputs, and a name that others' resources may have, too.
_OURS = "RosterTable"
# CloudFormation's own tag, by which a stack without the cluster's is known.
_LOGICAL_ID_TAG = "aws:cloudformation:logical-id"
# A function's logical id proves nothing, and a role is not in the index.
_IN_INDEX = ("queue", "table", "topic", "log group", "rule")
# Without EC2's, of which there are many, and EFS's, whose file systems `down` keeps.
_INDEXED = ("cloudformation", "dynamodb", "elasticmapreduce", "events", "fsx", "lambda", "logs", "sns", "sqs")
_INDEX_PAGE = 100
_IN_REVIEW = "an empty stack with a change set, which `phalanx plan --on-aws` could not remove"
# The root directory of an EFS file system without data counts as one object (docs/aws-behaviour.md 4.19).
_EMPTY_BYTES = 6144
# What EFS has counted may be hours behind what was written (ibid.).
_COUNTED_AFTER = timedelta(days=1)


@dataclass(frozen=True)
class Orphans:
    """What is left of one cluster. `stack` is the status of its failed stack, "" if it has none."""

    cluster: str
    stack: str
    lines: tuple[str, ...]


def find(api: Aws, trouble: remains.Trouble | None = None) -> list[Orphans]:
    """Return what is left of each cluster that has no living stack, by name.

    Raises CloudError for a service that does not answer, or passes that to `trouble` and goes on with the others. Of a
    cluster without an answer about its stack, nothing counts as left.
    """
    empty = dict(remains.answered(lambda: _empty_file_systems(api).items(), trouble))
    named = clusters(api, trouble) | empty.keys()
    reviewed = set(remains.answered(lambda: change_sets.in_review(api), trouble))
    named = sorted(filter(tags.is_name, named | reviewed))
    looks = (partial(_of, api, cluster, empty.get(cluster, ()), trouble) for cluster in named)
    return [found for look in looks for found in remains.answered(look, trouble)]


def clusters(api: Aws, trouble: remains.Trouble | None = None) -> set[str]:
    """Return the names of all clusters of which a tag or a resource's name speaks.

    EC2 is asked itself, too: its machines cost the most, and the index may not show them yet.
    """
    by_key = [{"Name": "key", "Values": [CLUSTER_TAG]}]
    of_tags: list[Callable[[], Iterator[dict[str, str]]]] = [
        lambda: api.pages("ec2", "describe_tags", "Tags", Filters=by_key),
        lambda: api.pages("autoscaling", "describe_tags", "Tags", Filters=by_key),
    ]
    found = (tag for look in of_tags for tag in remains.answered(look, trouble))
    tagged = {tag["Value"] for tag in found if tag["Key"] == CLUSTER_TAG}
    try:
        indexed = _in_index(api)
    except CloudError:
        # The user lacks the right, or the index does not answer. What else is wrong, the services say themselves.
        return {*tagged, *(one for look in _in_services(api) for one in remains.answered(look, trouble))}
    return {*tagged, *indexed, *remains.answered(lambda: _of_listed(strays.roles(api)), trouble)}


def _in_index(api: Aws) -> set[str]:
    """Return the clusters of which the index speaks: it has neither Auto Scaling groups nor roles (13.3)."""
    made = [one for kind in _IN_INDEX for one in strays.LOGICAL_IDS[kind]]
    return {*_indexed(api, CLUSTER_TAG, CLUSTER_TAG), *_indexed(api, _LOGICAL_ID_TAG, strays.STACK_TAG, made)}


def _indexed(api: Aws, key: str, names: str, values: Sequence[str] = ()) -> Iterator[str]:
    """Yield the clusters that the tag `names` names, of resources whose tag `key` has one of the values."""
    chosen = {
        "TagFilters": [{"Key": key, "Values": list(values)}],
        "ResourceTypeFilters": list(_INDEXED),
        "ResourcesPerPage": _INDEX_PAGE,
    }
    for found in api.pages("resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", **chosen):
        yield from (tag["Value"] for tag in found["Tags"] if tag["Key"] == names)


def _in_services(api: Aws) -> Iterator[Callable[[], Iterable[str]]]:
    """Yield what asks the services for the clusters of which they speak: each lists all that it has."""
    for names in _names(api):
        yield partial(_in_names, names)
    yield lambda: _of_listed(strays.listed(api))
    yield api.machines.clusters
    yield lambda: (cluster for _, cluster in lustre_file_systems.tagged(api))


def _of_listed(found: Iterable[strays.Listed]) -> Iterator[str]:
    """Yield the clusters of resources; one that is gone, or somebody else's, has none."""
    return filter(None, (one.cluster() for one in found if strays.WITH_TAGS.fullmatch(one.name)))


def _names(api: Aws) -> Iterator[Iterator[str]]:
    # Without MaxResults, SQS lists 1,000, and does not say that there are more.
    yield (url.rpartition("/")[2] for url in api.pages("sqs", "list_queues", "QueueUrls", MaxResults=1000))
    yield api.pages("dynamodb", "list_tables", "TableNames")
    yield (topic["TopicArn"].rpartition(":")[2] for topic in api.pages("sns", "list_topics", "Topics"))
    yield (group["logGroupName"] for group in api.pages("logs", "describe_log_groups", "logGroups"))


def _in_names(names: Iterable[str]) -> Iterator[str]:
    """Yield the clusters whose stacks made these names: NAME-LOGICALID-RANDOM."""
    return (found["cluster"] for found in map(strays.FORM.fullmatch, names) if found)


def _empty_file_systems(api: Aws) -> Mapping[str, list[str]]:
    """Return the EFS file systems that nobody uses and that have no data, which `down` would not have kept."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in api.pages("efs", "describe_file_systems", "FileSystems"):
        cluster = tags.cluster_of(one)
        if cluster and _is_empty(one):
            found[cluster].append(f"file system {one['FileSystemId']} (EFS has counted no data in it)")
    return found


def _is_empty(found: Mapping[str, Any]) -> bool:
    is_free = found["LifeCycleState"] == "available" and not found["NumberOfMountTargets"]
    return is_free and found["SizeInBytes"]["Value"] <= _EMPTY_BYTES and _is_counted(found)


def _is_counted(found: Mapping[str, Any]) -> bool:
    """Whether it is older than a day, and was so when EFS counted, if that is known."""
    now = datetime.now(timezone.utc)
    counted = found["SizeInBytes"].get("Timestamp", now)
    return min(now, counted) - found["CreationTime"] > _COUNTED_AFTER


def _of(api: Aws, cluster: str, empty: Iterable[str], trouble: remains.Trouble | None) -> Iterator[Orphans]:
    """Yield what is left of a cluster, if anything is; `empty` are its file systems without data."""
    state = stacks.describe(api, cluster)
    if state is None:
        lines = (*remains.find(api, cluster, (), trouble), *empty)
        if lines:
            yield Orphans(cluster, "", lines)
    elif state.in_review:
        if state.ours:
            yield Orphans(cluster, state.status, (_IN_REVIEW,))
    elif state.status not in _LIVES and not state.in_progress:
        made = stacks.resources(api, state.stack_id)
        if state.ours or any(one.logical_id == _OURS for one in made):
            yield Orphans(cluster, state.status, tuple(remains.find(api, cluster, made, trouble)))
