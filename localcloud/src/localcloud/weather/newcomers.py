"""What the metadata service says of a new instance in bad weather (docs/aws-behaviour.md 11.4).

The instance profile reaches it late: until then there is no role, or a document that is no credentials. And the service
may refuse a request for being one too many.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime, timedelta

from localcloud.clock import Clock
from localcloud.weather.sky import Weather

_LONGEST_S = 120.0
_BUSY = 0.1


@dataclass(frozen=True)
class _Start:
    """An instance's first minutes: what its credentials look like, until when."""

    until: datetime
    has_role: bool


class Newcomers:
    """The instances that the metadata service has been asked by."""

    def __init__(self, weather: Weather, clock: Clock) -> None:
        self._weather, self._clock = weather, clock
        self._lock = threading.Lock()
        self._starts: dict[str, _Start | None] = {}

    def lacks_role(self, instance_id: str) -> bool:
        """Whether the service does not know the instance's role yet, which it answers with 404."""
        start = self._start(instance_id)
        return start is not None and not start.has_role

    def lacks_credentials(self, instance_id: str) -> bool:
        """Whether the service knows the role, and EC2 can't assume it yet."""
        start = self._start(instance_id)
        return start is not None and start.has_role

    def must_wait(self, instance_id: str) -> bool:
        """Whether the instance's present request is one too many, which the service answers with 429."""
        if self._start(instance_id) is None:
            return False
        draw = self._weather.draw("metadata", "busy", instance_id)
        return draw is not None and draw.happens(_BUSY)

    def _start(self, instance_id: str) -> _Start | None:
        """Return the instance's start while it lasts; it begins with the first request."""
        with self._lock:
            if instance_id not in self._starts:
                self._starts[instance_id] = self._begin(instance_id)
            start = self._starts[instance_id]
        return start if start and self._clock.now() < start.until else None

    def _begin(self, instance_id: str) -> _Start | None:
        draw = self._weather.draw("metadata", instance_id)
        if draw is None:
            return None
        lasts_s, has_role = draw.seconds(0, _LONGEST_S), draw.happens(0.5)
        what = "credentials that EC2 refuses" if has_role else "no role"
        self._weather.struck("metadata", f"{instance_id} has {what} for {lasts_s:.1f} s")
        return _Start(self._clock.now() + timedelta(seconds=lasts_s), has_role)
