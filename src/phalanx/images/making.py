"""Make an image and follow its build, also one that another command began; read its manifest; and remove it."""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.aws import stacks
from phalanx.aws.model import StackEvent
from phalanx.cluster.deletion import Deletion
from phalanx.cluster.stack import Deadline, Follower, Leftovers, Stack, describe_cause
from phalanx.errors import CloudError, StackFailed
from phalanx.images import manifest
from phalanx.images.image_stack import MANIFEST_TAG, Order, request
from phalanx.images.shelf import Shelved
from phalanx.state_files import state_directory

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# Two hours to install everything, 90 minutes for the tests, and the machines and copies in between.
_MOST_MIN = 270
_TAIL_LINES = 20
# How the scripts announce their parts, and Image Builder its own.
_NEWS = ("== ", "phalanx: ", "phase ", "launched ", "creating ")
_STDOUT = "Stdout: "


@dataclass(frozen=True)
class BuildLine:
    """A line of a build's log that says what it does."""

    text: str

    def __str__(self) -> str:
        return self.text


class Making:
    """A build that is followed. Iterate `steps()`, which raises StackFailed with the reason and the end of the log."""

    def __init__(self, cloud: Aws, stack: Stack, log_group: str) -> None:
        self._cloud, self._stack = cloud, stack
        self._log = BuildLog(cloud, log_group)

    @classmethod
    def begin(cls, cloud: Aws, order: Order) -> Making:
        """Start to make an image."""
        document, parameters = request(order)
        role = order.place.role
        stack_id = stacks.create(cloud, order.stack, document, parameters, order.tags, _MOST_MIN, role)
        return cls(cloud, Stack(cloud, order.stack, stack_id), log_group_of(order.stack))

    @classmethod
    def join(cls, cloud: Aws, image: Shelved) -> Making:
        """Follow a build that another command began."""
        state = stacks.describe(cloud, image.stack)
        stack_id = state.stack_id if state else image.stack
        return cls(cloud, Stack(cloud, image.stack, stack_id), log_group_of(image.stack))

    def steps(self) -> Iterator[StackEvent | BuildLine | Leftovers]:
        """Yield what happens until the image is complete. Raises StackFailed, after a failed stack was deleted."""
        follower = Follower(self._stack, Deadline.after((_MOST_MIN + 10) * 60.0, f"{self._stack.name} to be built"))
        for events in follower.polls():
            yield from events
            yield from self._log.news()
        yield from self._log.news()
        if follower.state is None or not follower.state.ready:
            causes = [describe_cause(event) for event in follower.seen if event.is_cause]
            yield from (step for step in Deletion(self._stack).steps() if isinstance(step, Leftovers))
            raise StackFailed(
                "\n".join([f"the image was not made: {next(iter(causes), 'see its log')}", *self._log.tail]),
                code="image-failed",
            )


class BuildLog:
    """What a build prints, as Image Builder writes it to CloudWatch Logs."""

    def __init__(self, api: Aws, group: str) -> None:
        self._api, self._group = api, group
        self._seen: set[str] = set()
        self._since_ms = 0
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def news(self) -> Iterator[BuildLine]:
        """Yield the new lines that announce what comes next."""
        for text in self._new_lines():
            if manifest.MARK not in text:
                self.tail.append(f"  {text}")
            if text.startswith(_NEWS):
                yield BuildLine(text.removeprefix("== "))

    def lines(self) -> list[str]:
        """Return all lines; none if the log is gone."""
        return [event["message"] for event in self._events()]

    def _new_lines(self) -> Iterator[str]:
        for event in self._events(startTime=self._since_ms):
            if event["eventId"] not in self._seen:
                self._seen.add(event["eventId"])
                self._since_ms = max(self._since_ms, event["timestamp"])
                yield event["message"].rpartition(_STDOUT)[2]

    def _events(self, **since: int) -> Iterator[dict[str, Any]]:
        if self._api.exists("logs", "filter_log_events", logGroupName=self._group, limit=1, **since) is not None:
            yield from self._api.pages("logs", "filter_log_events", "events", logGroupName=self._group, **since)


def log_group_of(stack: str) -> str:
    """Return the log group of a build, which belongs to its stack."""
    return f"/aws/imagebuilder/{stack}"


def new_version(now_s: float) -> str:
    """Return the version of an image that is begun now: year, month and day, hour and minute, in UTC."""
    now = time.gmtime(now_s)
    return f"{now.tm_year}.{now.tm_mon * 100 + now.tm_mday}.{now.tm_hour * 100 + now.tm_min}"


def read_manifest(api: Aws, image: Shelved) -> dict[str, Any]:
    """Return what an image contains, from this machine's copy, its files or its build's log.

    The hash of it becomes a tag of the AMI. Raises CloudError if the log is gone, or is not of this image.
    """
    place = _manifests() / f"{image.image_id}.json"
    contents = {} if place.exists() else api.site.kept_contents(image.image_id)
    text = manifest.written(contents) if contents else place.read_text() if place.exists() else ""
    text = text or manifest.found_in(BuildLog(api, log_group_of(image.stack)).lines())
    if not text:
        raise CloudError(
            f"the manifest of {image.name} is not in its log {log_group_of(image.stack)}",
            "It is also in the image itself: /usr/local/lib/phalanx/manifest.json.",
            code="no-manifest",
        )
    digest = hashlib.sha256(text.encode()).hexdigest()
    if image.manifest not in ("", digest):
        raise CloudError(
            f"the manifest of {image.name} has been changed: its hash is not that of the AMI's tag", code="forged"
        )
    if not image.manifest:
        api.call("ec2", "create_tags", Resources=[image.image_id], Tags=[{"Key": MANIFEST_TAG, "Value": digest}])
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return json.loads(text)


def remove(cloud: Aws, image: Shelved) -> Iterator[StackEvent | Leftovers]:
    """Delete an image with its stack and its snapshots, and prove that nothing of it is left. Raises CloudError."""
    state = stacks.describe(cloud, image.stack)
    if state is not None:
        steps = Deletion(Stack(cloud, image.stack, state.stack_id)).steps()
        yield from (step for step in steps if isinstance(step, (StackEvent, Leftovers)))
    if image.image_id:
        _deregister(cloud, image.image_id)
        (_manifests() / f"{image.image_id}.json").unlink(missing_ok=True)


def _deregister(api: Aws, image_id: str) -> None:
    """Deregister an AMI that its stack has left, and delete its snapshots."""
    answer = api.exists("ec2", "describe_images", ImageIds=[image_id])
    for found in (answer or {}).get("Images", []):
        api.call("ec2", "deregister_image", ImageId=image_id)
        for disk in found.get("BlockDeviceMappings", []):
            if snapshot := disk.get("Ebs", {}).get("SnapshotId"):
                api.exists("ec2", "delete_snapshot", SnapshotId=snapshot)


def _manifests() -> Path:
    return state_directory() / "manifests"
