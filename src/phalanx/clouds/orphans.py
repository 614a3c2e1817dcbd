"""Find what is left in a region of clusters whose stack is gone, or failed and was left behind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from phalanx.clouds import lustre_file_systems, remains, strays
from phalanx.clouds.aws_api import ApiCloud
from phalanx.clouds.protocol import CLUSTER_TAG
from phalanx.spec.cloud_names import is_emr

_LIVES = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")
_NAMES = "|".join(name for names in strays.LOGICAL_IDS.values() for name in names)
_MADE = re.compile(rf"(?P<cluster>.+)-(?:{_NAMES})-[A-Za-z0-9]{{8,}}")


@dataclass(frozen=True)
class Orphans:
    """What is left of one cluster. `stack` is the status of its failed stack, "" if it has none."""

    cluster: str
    stack: str
    lines: tuple[str, ...]


def find(api: ApiCloud) -> list[Orphans]:
    """Return what is left of each cluster that has no living stack, by name. Raises CloudError."""
    return [found for cluster in sorted(clusters(api)) if (found := _of(api, cluster))]


def clusters(api: ApiCloud) -> set[str]:
    """Return the names of all clusters of which a tag or a resource's name speaks."""
    by_key = [{"Name": "key", "Values": [CLUSTER_TAG]}]
    return {
        *(tag["Value"] for tag in api.pages("ec2", "describe_tags", "Tags", Filters=by_key)),
        *(tag["Value"] for tag in api.pages("autoscaling", "describe_tags", "Tags", Filters=by_key)),
        *_in_names(_names(api)),
        *_of_emr(api),
        *(cluster for _, cluster in lustre_file_systems.tagged(api)),
    }


def _of_emr(api: ApiCloud) -> Iterator[str]:
    """Yield the clusters of which a tag of an EMR cluster speaks, which may have no machines yet."""
    for one in remains.active_emr_clusters(api) if is_emr(api.name) else ():
        described = api.call("emr", "describe_cluster", ClusterId=one["Id"])["Cluster"]
        yield from (tag["Value"] for tag in described.get("Tags", []) if tag["Key"] == CLUSTER_TAG)


def _names(api: ApiCloud) -> Iterator[str]:
    yield from (url.rpartition("/")[2] for url in api.pages("sqs", "list_queues", "QueueUrls"))
    yield from api.pages("dynamodb", "list_tables", "TableNames")
    yield from (topic["TopicArn"].rpartition(":")[2] for topic in api.pages("sns", "list_topics", "Topics"))
    yield from (group["logGroupName"] for group in api.pages("logs", "describe_log_groups", "logGroups"))


def _in_names(names: Iterable[str]) -> set[str]:
    """Return the clusters whose stacks made these names: NAME-LOGICALID-RANDOM."""
    return {found["cluster"] for found in map(_MADE.fullmatch, names) if found}


def _of(api: ApiCloud, cluster: str) -> Orphans | None:
    state = api.describe_stack(cluster)
    if state is not None and (state.status in _LIVES or state.in_progress):
        return None
    lines = remains.find(api, cluster, api.resources(state.stack_id) if state else ())
    return Orphans(cluster, state.status if state else "", tuple(lines)) if lines or state else None
