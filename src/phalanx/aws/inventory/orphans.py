"""Find what is left in a region of clusters whose stack is gone, or failed and was left behind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from phalanx.aws import lustre_file_systems, stacks, tags
from phalanx.aws.inventory import remains, strays
from phalanx.spec.own_tags import CLUSTER_TAG

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_LIVES = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")
# A stack from the console that failed has neither a tag nor outputs, and a name that others' resources may have, too.
_OURS = "RosterTable"
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


def find(api: Aws) -> list[Orphans]:
    """Return what is left of each cluster that has no living stack, by name. Raises CloudError."""
    empty = _empty_file_systems(api)
    named = clusters(api) | empty.keys()
    return [found for cluster in sorted(named) if (found := _of(api, cluster, empty.get(cluster, ())))]


def clusters(api: Aws) -> set[str]:
    """Return the names of all clusters of which a tag or a resource's name speaks."""
    by_key = [{"Name": "key", "Values": [CLUSTER_TAG]}]
    return {
        *(tag["Value"] for tag in api.pages("ec2", "describe_tags", "Tags", Filters=by_key)),
        *(tag["Value"] for tag in api.pages("autoscaling", "describe_tags", "Tags", Filters=by_key)),
        *_in_names(_names(api)),
        *(one.cluster() for one in strays.listed(api) if strays.WITH_TAGS.fullmatch(one.name)),
        *api.machines.clusters(),
        *(cluster for _, cluster in lustre_file_systems.tagged(api)),
    }


def _names(api: Aws) -> Iterator[str]:
    # Without MaxResults, SQS lists 1,000, and does not say that there are more.
    yield from (url.rpartition("/")[2] for url in api.pages("sqs", "list_queues", "QueueUrls", MaxResults=1000))
    yield from api.pages("dynamodb", "list_tables", "TableNames")
    yield from (topic["TopicArn"].rpartition(":")[2] for topic in api.pages("sns", "list_topics", "Topics"))
    yield from (group["logGroupName"] for group in api.pages("logs", "describe_log_groups", "logGroups"))


def _in_names(names: Iterable[str]) -> set[str]:
    """Return the clusters whose stacks made these names: NAME-LOGICALID-RANDOM."""
    return {found["cluster"] for found in map(strays.FORM.fullmatch, names) if found}


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


def _of(api: Aws, cluster: str, empty: Iterable[str]) -> Orphans | None:
    """Return what is left of a cluster; `empty` are its file systems without data."""
    state = stacks.describe(api, cluster)
    if state is not None and (state.status in _LIVES or state.in_progress):
        return None
    if state is not None:
        made = stacks.resources(api, state.stack_id)
        is_ours = state.ours or any(one.logical_id == _OURS for one in made)
        return Orphans(cluster, state.status, tuple(remains.find(api, cluster, made))) if is_ours else None
    lines = (*remains.find(api, cluster, ()), *empty)
    return Orphans(cluster, "", lines) if lines else None
