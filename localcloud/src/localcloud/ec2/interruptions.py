"""EC2 takes spot instances back: a notice in their metadata, and after two minutes their end (aws-behaviour 2.16)."""

from __future__ import annotations

from datetime import datetime, timedelta

from localcloud.context import Context
from localcloud.ec2 import fleet

NOTICE_S = 120.0
_CODE = "Server.SpotInstanceTermination"
_LONGEST_NOTICE_S = 3600.0


def interrupt(context: Context, instance_id: str, notice_s: float | None = None) -> None:
    """Give a spot instance its notice, and terminate it after `notice_s`. Raises ValueError for any other instance.

    By default the notice has AWS's two minutes, divided by the speed of the weather.
    """
    machines = fleet.current()
    instance = machines.instance(instance_id)
    if instance is None or instance.lifecycle != "spot":
        raise ValueError(f"{instance_id} is no spot instance that runs here")
    after_s = context.weather.scaled(NOTICE_S) if notice_s is None else notice_s
    if not 0 <= after_s <= _LONGEST_NOTICE_S:
        raise ValueError(f"a notice has 0 to {_LONGEST_NOTICE_S:.0f} s")
    machines.taken_at[instance_id] = context.clock.now() + timedelta(seconds=after_s)
    context.clock.call_later(after_s, machines.end, instance, _CODE, f"{_CODE}: Spot instance termination")


def taken_at(instance_id: str) -> datetime | None:
    """Return when EC2 takes the instance back; None if it had no notice."""
    return fleet.current().taken_at.get(instance_id)
