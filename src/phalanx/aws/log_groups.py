"""The boot logs of a cluster's nodes, in its log group."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# Of one stream: 10 MiB.
_MOST_PAGES = 10


def read(aws: Aws, log_group: str) -> dict[str, str]:
    """Return the logs by stream; a node's stream is its private address. Empty when the group is gone."""
    if aws.exists("logs", "describe_log_streams", logGroupName=log_group, limit=1) is None:
        return {}
    streams = aws.pages("logs", "describe_log_streams", "logStreams", logGroupName=log_group)
    return {stream["logStreamName"]: _text(aws, log_group, stream["logStreamName"]) for stream in streams}


def delete(aws: Aws, log_group: str) -> None:
    """Delete the log group; no error when it is gone."""
    aws.exists("logs", "delete_log_group", logGroupName=log_group)


def _text(aws: Aws, log_group: str, stream: str) -> str:
    """Return a stream's last lines. A page may be short or empty though more follow (docs/aws-behaviour.md 11.22)."""
    pages: deque[list[str]] = deque()
    token: dict[str, str] = {}
    for _ in range(_MOST_PAGES):
        asked = {"logGroupName": log_group, "logStreamName": stream, "startFromHead": False, **token}
        answer = aws.call("logs", "get_log_events", **asked)
        pages.appendleft([event["message"].rstrip("\n") for event in answer["events"]])
        before, token = token, {"nextToken": answer.get("nextBackwardToken", "")}
        if before == token or not token["nextToken"]:
            break
    return "\n".join(line for page in pages for line in page)
