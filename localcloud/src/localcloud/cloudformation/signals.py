"""Signals for wait conditions and creation policies: parses them and decides what they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources.waiting import WAIT_CONDITION

SUCCESS, FAILURE, UNPARSABLE = "SUCCESS", "FAILURE", "UNPARSABLE"
GROUP = "AWS::AutoScaling::AutoScalingGroup"
# Reasons of events (docs/aws-behaviour.md 1.44).
RECEIVED = "Received {} signal with UniqueId {}"
MISSED = (
    "Failed to receive {} resource signal(s) for the current batch. Each resource signal timeout is counted as a"
    " FAILURE."
)
DURATION = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?")


@dataclass(frozen=True)
class Signal:
    """One signal; another with the same `unique_id` is a retransmission (docs/aws-behaviour.md 1.10)."""

    unique_id: str
    status: str
    data: str = ""
    reason: str = ""


def read_signal(body: bytes) -> Signal:
    """Parse a signal that was PUT to a wait handle; anything but AWS's document is UNPARSABLE."""
    try:
        document = json.loads(body)
        status, unique_id = document["Status"], document["UniqueId"]
    except (ValueError, KeyError, TypeError):
        return Signal("", UNPARSABLE)
    if status not in (SUCCESS, FAILURE) or not isinstance(unique_id, str):
        return Signal("", UNPARSABLE)
    return Signal(unique_id, status, str(document.get("Data", "")), str(document.get("Reason", "")))


@dataclass(frozen=True)
class Wait:
    """What a resource waits for: `count` successes for `target` (a handle, or its own name) within `timeout_s`.

    Of a group, `percent` of the signals have to be successes.
    """

    target: str
    count: int
    timeout_s: float
    is_condition: bool
    percent: int | None = None

    @property
    def is_group(self) -> bool:
        """Whether an Auto Scaling group waits."""
        return self.percent is not None

    def failure(self, received: Collection[Signal]) -> str | None:
        """Return the reason why the wait has failed, or None."""
        if self.percent is not None:
            failures = sum(signal.status != SUCCESS for signal in received)
            return too_few("FAILURE", failures, self.count, self.percent) if failures else None
        for signal in received:
            if signal.status == UNPARSABLE:
                return "Unparsable WaitCondition data"  # docs/aws-behaviour.md 1.11
            if signal.status == FAILURE and self.is_condition:
                return f"WaitCondition received failed message: '{signal.reason}' for uniqueId: {signal.unique_id}"
            if signal.status == FAILURE:
                return f"Received FAILURE signal with UniqueId {signal.unique_id}"
        return None

    def timeout(self, received: Collection[Signal]) -> str | None:
        """Return the reason of a timeout; None if what was received is enough."""
        if self.percent is not None:
            successes = sum(signal.status == SUCCESS for signal in received)
            return too_few("SUCCESS", successes, self.count, self.percent)
        if self.is_condition:
            return f"WaitCondition timed out. Received {len(received)} conditions when expecting {self.count}"
        return f"Failed to receive {self.count - len(received)} resource signal(s) within the specified duration"


def too_few(status: str, number: int, count: int, percent: int) -> str | None:
    """Return why this many signals of this status mean that a group fails; None if enough machines can succeed."""
    successes = number if status == SUCCESS else count - number
    if successes * 100 >= count * percent:
        return None
    return (
        f"Received {number} {status} signal(s) out of {count}. Unable to satisfy {percent}% "
        "MinSuccessfulInstancesPercent requirement"
    )


def data_text(received: Collection[Signal]) -> str:
    """Return the value of `Fn::GetAtt: [condition, Data]` (docs/aws-behaviour.md 1.11)."""
    return json.dumps({signal.unique_id: signal.data for signal in received}, separators=(",", ":"))


def wait_of(logical_id: str, kind: str, properties: Mapping[str, Any], policy: Mapping[str, Any]) -> Wait | None:
    """Return what a created resource waits for, or None; `policy` is its resolved CreationPolicy."""
    is_condition = kind == WAIT_CONDITION
    if "ResourceSignal" in policy:
        # Without anything in it, AWS waits for one signal for five minutes.
        rule = policy["ResourceSignal"] or {}
        least = policy.get("AutoScalingCreationPolicy") or {}
        percent = int(least.get("MinSuccessfulInstancesPercent", 100)) if kind == GROUP else None
        timeout_s = seconds(str(rule.get("Timeout", "PT5M")))
        return Wait(logical_id, int(rule.get("Count", 1)), timeout_s, is_condition, percent)
    if not is_condition:
        return None
    if "Handle" not in properties or "Timeout" not in properties:
        raise ResourceFailed("WaitCondition must have both a Handle and a Timeout, or a CreationPolicy")
    return Wait(properties["Handle"], int(properties.get("Count", 1)), float(properties["Timeout"]), True)


def seconds(duration: str) -> float:
    """Convert an ISO 8601 duration such as PT15M or PT1H30M to seconds."""
    found = DURATION.fullmatch(duration)
    if not found or duration == "PT":
        raise ResourceFailed(f"CreationPolicy Timeout {duration} is not in ISO8601 duration format, e.g. PT15M")
    return float(sum(int(part or 0) * unit for part, unit in zip(found.groups(), (3600, 60, 1), strict=True)))
