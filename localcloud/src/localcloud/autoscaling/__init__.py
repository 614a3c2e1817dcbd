"""Auto Scaling groups of the local cloud: CloudFormation uses the functions here, everybody else the API."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from localcloud.autoscaling import api, groups, notify, scheduled
from localcloud.autoscaling.api import PATCHED
from localcloud.autoscaling.group import Group, Notify
from localcloud.autoscaling.members import Members
from localcloud.autoscaling.reconciler import Reconciler
from localcloud.context import Context
from localcloud.ec2 import fleet

__all__ = [
    "PATCHED",
    "Members",
    "create_group",
    "delete_group",
    "delete_scheduled_action",
    "group_named",
    "group_of",
    "install",
    "members_of",
    "put_scheduled_action",
    "remove_tags",
    "update_group",
]

_worker: Reconciler | None = None


def install(context: Context) -> None:
    """Start the reconciler and answer the Auto Scaling API from it. Call ec2.install() first."""
    global _worker
    _worker = Reconciler(context, fleet.current(), partial(notify.publish, context))
    api.install(_worker)


def create_group(context: Context, region: str, name: str, properties: Mapping[str, Any], settled: Notify) -> None:
    """Create a group and return at once.

    `settled(None)` is called once the desired capacity is in service, or `settled(reason)` when launches keep failing.
    Raises ServiceException with AWS's message for what AWS refuses.
    """
    worker = _running()
    # With the lock held, the worker can't launch before the topics are known.
    with worker.lock:
        group = groups.create(worker, region, name, properties, settled)
        try:
            for topic, kinds in _topics(properties):
                notify.subscribe(context, group, topic, kinds)
        except BaseException:
            groups.delete(worker, region, name, force=True)
            raise


def update_group(context: Context, region: str, name: str, properties: Mapping[str, Any], settled: Notify) -> None:
    """Update an existing group, as create_group creates one; running instances stay as they are."""
    worker = _running()
    with worker.lock:
        group = groups.update(worker, region, name, properties, settled)
        wanted = dict(_topics(properties))
        for topic in set(group.notifications) - set(wanted):
            del group.notifications[topic]
        for topic, kinds in wanted.items():
            if group.notifications.get(topic) != kinds:
                notify.subscribe(context, group, topic, kinds)


def members_of(region: str, name: str) -> Members:
    """Return the instances of a group."""
    return Members(_running(), region, name)


def remove_tags(region: str, name: str, keys: Collection[str]) -> None:
    """Remove the tags with these keys from a group."""
    worker = _running()
    with worker.lock:
        group = groups.find(worker, region, name)
        group.tags = [tag for tag in group.tags if tag["Key"] not in keys]


def delete_group(context: Context, region: str, name: str, gone: Notify) -> None:
    """Delete a group and return at once; `gone(None)` is called when every instance is terminated.

    A group that does not exist is gone. CloudFormation first sets the group's size to 0, so instances protected from
    scale-in make the deletion fail: `gone(reason)`.
    """
    worker = _running()
    with worker.lock:
        missing = (region, name) not in worker.groups
        if not missing:
            groups.delete(worker, region, name, force=False, gone=gone)
    if missing:
        context.spawn(gone, None, name="group-gone")


def put_scheduled_action(region: str, name: str, properties: Mapping[str, Any]) -> None:
    """Make a scheduled action of the group that the properties name. Raises ValidationError as AWS does."""
    worker = _running()
    with worker.lock:
        scheduled.put(worker, region, {**properties, "ScheduledActionName": name})


def delete_scheduled_action(region: str, group: str, name: str) -> None:
    """Delete a scheduled action; one that has run, or whose group is gone, is no error."""
    worker = _running()
    with worker.lock:
        found = worker.groups.get((region, group))
        if found is not None:
            scheduled.cancel(found, name)


def group_named(region: str, name: str) -> Group:
    """Return the group with this name. Raises ValidationError when there is none."""
    return groups.find(_running(), region, name)


def group_of(region: str, instance_id: str) -> Group:
    """Return the group that an instance belongs to. Raises ValidationError when there is none."""
    worker = _running()
    with worker.lock:
        return groups.find_member(worker, region, instance_id)


def _running() -> Reconciler:
    assert _worker is not None, "call autoscaling.install() first"
    return _worker


def _topics(properties: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    configured = list(properties.get("NotificationConfigurations") or [])
    if properties.get("NotificationConfiguration"):
        configured.append(properties["NotificationConfiguration"])
    return [(_arn(one["TopicARN"]), list(one["NotificationTypes"])) for one in configured]


def _arn(topic: str | list[str]) -> str:
    """Return the topic; CloudFormation accepts one topic, or a list of one."""
    return topic if isinstance(topic, str) else topic[0]
