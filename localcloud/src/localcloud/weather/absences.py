"""Shared directories that stop answering for a while in bad weather (docs/aws-behaviour.md 11.17)."""

from __future__ import annotations

import logging
import threading

from moto.ec2.models.instances import Instance

from localcloud.context import Context
from localcloud.nodes.machine import NodeError

log = logging.getLogger(__name__)

AWAY_S = 300.0
WITHIN_S = 600.0


class Absences:
    """Decides once for each VPC, when its first instance runs, when the shared directory of all its nodes is away."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._seen: set[str] = set()

    def plan(self, instance: Instance) -> None:
        """Let the shared directory be away some time after the VPC's first instance started."""
        vpc_id = instance.vpc_id or ""
        with self._lock:
            if vpc_id in self._seen:
                return
            self._seen.add(vpc_id)
        draw = self._context.weather.draw("storage")
        if draw:
            self._context.clock.call_later(draw.seconds(0, WITHIN_S), self._begin, vpc_id)

    def _begin(self, vpc_id: str) -> None:
        away_s = self._context.weather.scaled(AWAY_S)
        self._context.weather.struck("storage", f"the shared directory of {vpc_id} answers nothing for {away_s:.1f} s")
        for node in self._context.runner.nodes():
            if node.vpc_id == vpc_id:
                self._freeze(node.instance_id, away_s)

    def _freeze(self, instance_id: str, away_s: float) -> None:
        try:
            self._context.runner.freeze(instance_id, away_s)
        except NodeError as problem:
            log.info("%s keeps its shared directory: %s", instance_id, problem)
