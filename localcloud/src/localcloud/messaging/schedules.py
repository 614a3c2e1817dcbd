"""EventBridge's scheduled rules: each invokes its functions at its rate, where their policies allow it."""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import dataclass, field
from typing import Any

from moto.awslambda.utils import get_backend

from localcloud.clock import Timer
from localcloud.context import Context
from localcloud.iam import policy
from localcloud.messaging import functions

log = logging.getLogger(__name__)

SERVICE = "events.amazonaws.com"
_UNIT_S = {"minute": 60.0, "hour": 3600.0, "day": 86400.0}
# One may stand only before a singular unit, and only it may (docs/aws-behaviour.md 1.34).
_RATE = re.compile(r"rate\((?:(1) (minute|hour|day)|([2-9]|[1-9]\d+) (minute|hour|day)s)\)")


class InvalidSchedule(Exception):  # noqa: N818
    """EventBridge does not accept the expression."""


@dataclass
class _Schedule:
    """A rule that runs: its functions' ARNs, and the timer of its next event."""

    arn: str
    every_s: float
    targets: list[str]
    timer: Timer | None = field(default=None)


class Schedules:
    """The scheduled rules of one local cloud."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rules: dict[str, _Schedule] = {}
        context.at_stop(self.stop)

    def put(self, arn: str, expression: str, targets: list[str]) -> None:
        """Begin a rule, or change it: its time begins again. Raises InvalidSchedule."""
        rule = _Schedule(arn, rate_s(expression), targets)
        self.remove(arn)
        self._rules[arn] = rule
        self._wait(rule)

    def remove(self, arn: str) -> None:
        """End a rule; nothing happens without one."""
        rule = self._rules.pop(arn, None)
        if rule is not None and rule.timer is not None:
            rule.timer.cancel()

    def stop(self) -> None:
        """End all rules."""
        for arn in list(self._rules):
            self.remove(arn)

    def _wait(self, rule: _Schedule) -> None:
        rule.timer = self._context.clock.call_later(self._context.weather.scaled(rule.every_s), self._fire, rule)

    def _fire(self, rule: _Schedule) -> None:
        if self._rules.get(rule.arn) is not rule:
            return
        for target in rule.targets:
            self._invoke(rule, target)
        self._wait(rule)

    def _invoke(self, rule: _Schedule, target: str) -> None:
        region = target.split(":")[3]
        function = get_backend(self._context.account, region).get_function_by_arn(target)
        if function is None:
            log.warning("%s, a target of %s, no longer exists", target, rule.arn)
            return
        keys = {"aws:sourcearn": [rule.arn], "aws:sourceaccount": [self._context.account]}
        ask = policy.Ask("lambda:InvokeFunction", target, keys, SERVICE)
        allowed = policy.decide(policy.statements_of({"Statement": function.policy.statements}), ask)
        if allowed is policy.Decision.ALLOWED:
            functions.invoke_async(function, self._event(rule, region))
        else:
            log.warning("no policy allows %s to invoke %s", rule.arn, target)

    def _event(self, rule: _Schedule, region: str) -> dict[str, Any]:
        """Return what a scheduled rule sends to its targets (docs/aws-behaviour.md 1.34)."""
        return {
            "version": "0",
            "id": str(uuid.uuid4()),
            "detail-type": "Scheduled Event",
            "source": "aws.events",
            "account": self._context.account,
            "time": self._context.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
            "region": region,
            "resources": [rule.arn],
            "detail": {},
        }


def rate_s(expression: str) -> float:
    """Return the seconds between two events of a rate. Raises InvalidSchedule, for cron too, which is not served."""
    found = _RATE.fullmatch(expression)
    if found is None:
        raise InvalidSchedule("Parameter ScheduleExpression is not valid.")
    one, unit, number, units = found.groups()
    return int(one or number) * _UNIT_S[unit or units]


_schedules: Schedules | None = None
PATCHED: tuple[str, ...] = ()


def install(context: Context) -> None:
    """Begin without rules."""
    global _schedules
    _schedules = Schedules(context)


def running() -> Schedules:
    """Return the rules of the local cloud that runs in this process."""
    assert _schedules is not None, "call schedules.install() first"
    return _schedules
