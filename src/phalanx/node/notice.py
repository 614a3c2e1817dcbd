"""A spot instance's notice that AWS takes it back, which its metadata contain two minutes before."""

from __future__ import annotations

import json
import time

from phalanx.node import activity
from phalanx.node.agent import Agent
from phalanx.node.aws_client import AwsError


def watch(agent: Agent) -> None:
    """Report the notice to the head until this instance ends: a new head has not heard of it. Return if none can come.

    A recommendation to rebalance is no notice: the instance may run for days after it (docs/aws-behaviour.md 2.38).
    """
    shown = ""
    while True:
        try:
            if agent.metadata.get("meta-data/instance-life-cycle") != b"spot":
                return
            taken_at = json.loads(agent.metadata.get("meta-data/spot/instance-action"))["time"]
            text = f"AWS takes back this spot instance at {taken_at}"
            if shown != text:
                shown = text
                activity.show(text)
            agent.report("leaving", reason=text)
        except (OSError, AwsError, ValueError, KeyError, TypeError):
            pass  # there is no notice yet (404), or the report is sent again
        time.sleep(agent.settings.patience.notice_every_s)
