"""AWS::Events::Rule: a scheduled rule of the default bus whose targets are functions."""

from __future__ import annotations

from typing import Any

from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources.registry import Made, Request, resource, updates
from localcloud.messaging import schedules

_SERVED = {"Name", "Description", "ScheduleExpression", "State", "Targets", "Tags"}
_TARGET = {"Arn", "Id"}


def _events(request: Request) -> Any:
    # Few stacks have rules.
    from moto.events.models import events_backends

    return events_backends[request.context.account][request.region]


def _delete(request: Request, physical_id: str) -> None:
    backend = _events(request)
    bus = backend.describe_event_bus("default")
    rule = bus.rules.get(physical_id)
    if rule is not None:
        schedules.running().remove(rule.arn)
        backend.remove_targets(physical_id, "default", [target["Id"] for target in rule.targets])
        backend.delete_rule(physical_id, "default")


@resource("AWS::Events::Rule", _delete, "Arn RuleName")
def _rule(request: Request) -> Made:
    name = request.name("Name", 64)
    return Made(name, {"Arn": _put(request, name), "RuleName": name})


@updates("AWS::Events::Rule", "Description ScheduleExpression State Targets")
def _update(request: Request, before: Request, physical_id: str) -> None:
    gone = {one["Id"] for one in before.properties.get("Targets", [])}
    gone -= {one["Id"] for one in request.properties.get("Targets", [])}
    _events(request).remove_targets(physical_id, "default", sorted(gone))
    _put(request, physical_id)


def _put(request: Request, name: str) -> str:
    """Make or change a rule, and begin its schedule; return its ARN."""
    properties = request.properties
    _refuse_unserved(properties)
    targets = list(properties.get("Targets", []))
    backend, expression = _events(request), properties["ScheduleExpression"]
    try:
        schedules.rate_s(expression)
    except schedules.InvalidSchedule as error:
        raise ResourceFailed(f"{error} (Service: EventBridge, Status Code: 400)") from None
    rule = backend.put_rule(
        name,
        description=properties.get("Description"),
        scheduled_expression=expression,
        state=properties.get("State", "ENABLED"),
        tags=request.tag_list(),
    )
    if targets:
        backend.put_targets(name, "default", targets)
    if properties.get("State", "ENABLED") == "ENABLED":
        schedules.running().put(rule.arn, expression, [one["Arn"] for one in targets])
    else:
        schedules.running().remove(rule.arn)
    return rule.arn


def _refuse_unserved(properties: Any) -> None:
    """Refuse what would be kept and have no effect here."""
    unserved = sorted({*properties} - _SERVED)
    unserved += sorted({key for one in properties.get("Targets", []) for key in one} - _TARGET)
    others = [one["Arn"] for one in properties.get("Targets", []) if ":lambda:" not in one["Arn"]]
    if unserved or others or not str(properties.get("ScheduleExpression", "")).startswith("rate("):
        raise ResourceFailed(
            "The local cloud runs rules with a rate and functions as targets; it does not support "
            + ", ".join([*unserved, *others] or ["this ScheduleExpression"])
        )
