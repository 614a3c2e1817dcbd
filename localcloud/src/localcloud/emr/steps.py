"""Steps of a cluster: what the master runs, one after another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = "PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"


@dataclass(eq=False)
class Step:
    """A step. `cancelling`: its process is being ended on request."""

    id: str
    wanted: Mapping[str, Any]
    created: datetime
    state: str = PENDING
    started: datetime | None = None
    ended: datetime | None = None
    failure: Mapping[str, str] | None = None
    cancelling: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it waits or runs."""
        return self.state in (PENDING, RUNNING)

    @property
    def on_failure(self) -> str:
        """What its failure does to the cluster; "TERMINATE_JOB_FLOW" is the older name."""
        action = str(self.wanted.get("ActionOnFailure") or "TERMINATE_CLUSTER")
        return "TERMINATE_CLUSTER" if action == "TERMINATE_JOB_FLOW" else action

    @property
    def jar(self) -> str:
        return str(self.wanted["HadoopJarStep"]["Jar"])

    @property
    def args(self) -> list[str]:
        return [str(arg) for arg in self.wanted["HadoopJarStep"].get("Args") or []]

    def end(self, state: str, now: datetime, failure: Mapping[str, str] | None = None) -> None:
        """Record how it ended."""
        self.state, self.ended, self.failure = state, now, failure

    def describe(self) -> dict[str, Any]:
        given = self.wanted["HadoopJarStep"]
        timeline = {"CreationDateTime": self.created, "StartDateTime": self.started, "EndDateTime": self.ended}
        status: dict[str, Any] = {
            "State": self.state,
            "StateChangeReason": {},
            "Timeline": {name: at for name, at in timeline.items() if at},
        }
        if self.failure:
            status["FailureDetails"] = dict(self.failure)
        properties = {one["Key"]: one["Value"] for one in given.get("Properties") or []}
        return {
            "Id": self.id,
            "Name": self.wanted["Name"],
            "Config": {"Jar": self.jar, "Args": self.args, "Properties": properties},
            "ActionOnFailure": self.on_failure,
            "Status": status,
        }
