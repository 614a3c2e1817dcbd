"""What a cluster has used: hours of instances, by the record that Auto Scaling keeps for six weeks, and GiB stored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from phalanx.aws import activities
from phalanx.aws.model import ScalingActivity
from phalanx.plan.money import Use

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_BEGIN = re.compile(r"Launching a new EC2 instance: (i-\w+)")
_END = re.compile(r"Terminating EC2 instance: (i-\w+)")


def use(api: Aws, cluster: str, file_system: str, now_s: float) -> Use:
    """Return what the cluster has used until now."""
    head_hours, heads = node_hours(activities.of(api, f"{cluster}-head"), now_s)
    worker_hours, workers = node_hours(activities.of(api, f"{cluster}-workers"), now_s)
    stored = stored_gib(api, file_system) if file_system else 0.0
    return Use(head_hours, worker_hours, heads, workers, stored)


def node_hours(found: Iterable[ScalingActivity], now_s: float) -> tuple[float, int]:
    """Return the hours of all instances that these activities launched, and how many of them still run.

    A launch counts from the start of its activity; a failed one that got an instance ends with it.
    """
    began: dict[str, float] = {}
    ended: dict[str, float] = {}
    for one in found:
        end_s = now_s if one.ended_s is None else one.ended_s
        if launch := _BEGIN.match(one.description):
            began[launch[1]] = one.began_s
            if one.status in ("Failed", "Cancelled"):
                ended[launch[1]] = end_s
        elif end := _END.match(one.description):
            ended[end[1]] = end_s
    seconds = sum(max(0.0, ended.get(instance, now_s) - start_s) for instance, start_s in began.items())
    return seconds / 3600, len(began.keys() - ended.keys())


def stored_gib(api: Aws, file_system: str) -> float:
    """Return the size of a file system's data."""
    answer = api.exists("efs", "describe_file_systems", FileSystemId=file_system) or {"FileSystems": []}
    return sum(one["SizeInBytes"]["Value"] for one in answer["FileSystems"]) / 2**30
