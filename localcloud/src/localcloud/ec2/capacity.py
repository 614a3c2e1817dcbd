"""How many instances of each type the local cloud can still start, and AWS's messages when there are none left."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

EVERYWHERE = ""


class CapacityError(Exception):
    """AWS would not start the instance; `code` and `message` are AWS's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass
class LaunchFailure:
    """Launches fail with this message, `remaining` times (None: until the fault is lifted)."""

    message: str
    code: str = "Client.InternalError"
    remaining: int | None = None


class Pool:
    """The capacity of all zones: unlimited, unless a limit is set for a type, a type in a zone, or all vCPUs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limits: dict[tuple[str, str], int] = {}
        self._used: Counter[tuple[str, str]] = Counter()
        self._used_vcpus = 0
        self._vcpu_limit: int | None = None
        self._failure: LaunchFailure | None = None

    def limit(self, instance_type: str, count: int | None, zone: str = EVERYWHERE) -> None:
        """Allow at most `count` instances of the type, in `zone` or in all zones together; None lifts the limit."""
        with self._lock:
            _set(self._limits, (instance_type, zone), count)

    @property
    def vcpu_limit(self) -> int | None:
        """The account's vCPU quota; None if there is none."""
        return self._vcpu_limit

    def limit_vcpus(self, count: int | None) -> None:
        """Set the account's vCPU quota, which covers all types; None lifts it."""
        with self._lock:
            self._vcpu_limit = count

    def fail_launches(self, failure: LaunchFailure | None) -> None:
        """Make launches fail whatever the capacity; None lifts the fault."""
        with self._lock:
            self._failure = failure

    def take(self, instance_type: str, zone: str, vcpus: int, count: int = 1) -> None:
        """Let `count` instances start, all or none. Raises CapacityError."""
        self.refuse_by_fault()
        self.hold(instance_type, zone, vcpus, count)

    def hold(self, instance_type: str, zone: str, vcpus: int, count: int = 1) -> None:
        """Take the capacity of `count` instances, all or none. Raises CapacityError."""
        with self._lock:
            self._refuse_by_quota(vcpus * count)
            self._refuse_by_capacity(instance_type, zone, count)
            self._count(instance_type, zone, vcpus, count)

    def give_back(self, instance_type: str, zone: str, vcpus: int, count: int = 1) -> None:
        """Release what `take` or `hold` has taken."""
        with self._lock:
            self._count(instance_type, zone, vcpus, -count)

    def _count(self, instance_type: str, zone: str, vcpus: int, count: int) -> None:
        self._used[instance_type, zone] += count
        self._used[instance_type, EVERYWHERE] += count
        self._used_vcpus += vcpus * count

    def refuse_by_fault(self) -> None:
        """Raise CapacityError if launches are to fail."""
        with self._lock:
            failure = self._failure
            if failure is None:
                return
            if failure.remaining is not None:
                failure.remaining -= 1
                if failure.remaining <= 0:
                    self._failure = None
        raise CapacityError(failure.code, failure.message)

    def _refuse_by_quota(self, vcpus: int) -> None:
        if self._vcpu_limit is not None and self._used_vcpus + vcpus > self._vcpu_limit:
            raise CapacityError("VcpuLimitExceeded", quota_message(self._vcpu_limit))

    def _refuse_by_capacity(self, instance_type: str, zone: str, count: int) -> None:
        for place in (zone, EVERYWHERE):
            limit = self._limits.get((instance_type, place))
            if limit is not None and self._used[instance_type, place] + count > limit:
                raise CapacityError("InsufficientInstanceCapacity", capacity_message(instance_type, zone))


def capacity_message(instance_type: str, zone: str) -> str:
    """EC2's message for a zone without capacity (docs/aws-behaviour.md 2.17)."""
    return f"{_insufficient(instance_type, zone)} Our system will be working on provisioning additional capacity."


def no_room_message(instance_type: str, zone: str, fix: str, what: str) -> str:
    """Return EC2's message with what this machine lacks. What helps comes first: long reasons are cut."""
    return f"{_insufficient(instance_type, zone)} This machine has no room for another node. {fix} ({what})"


def _insufficient(instance_type: str, zone: str) -> str:
    return (
        f"We currently do not have sufficient {instance_type} capacity in the Availability Zone you requested ({zone})."
    )


def quota_message(vcpu_limit: int) -> str:
    """EC2's message for an account at its quota (docs/aws-behaviour.md 2.17)."""
    return (
        f"You have requested more vCPU capacity than your current vCPU limit of {vcpu_limit} allows for the instance"
        " bucket that the specified instance type belongs to."
        " Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."
    )


def _set(limits: dict[tuple[str, str], int], key: tuple[str, str], count: int | None) -> None:
    if count is None:
        limits.pop(key, None)
    else:
        limits[key] = count
