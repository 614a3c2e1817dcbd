"""What CloudFormation validates of a template before it makes anything (docs/aws-behaviour.md 1.49 to 1.52).

FAIL stops the operation, WARN does not. Of a change set the local cloud checks properties by AWS's schemas, and quotas
of VPCs and addresses; whatever else AWS would find, a fault plants, and CreateStack meets only what is planted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localcloud.cloudformation.errors import Refused
from localcloud.cloudformation.functions import Scope, resolve
from localcloud.cloudformation.resources import TYPES
from localcloud.cloudformation.schemas import problems
from localcloud.cloudformation.template import Declared
from localcloud.ec2 import account_quotas

FAIL, WARN = "FAIL", "WARN"
PROPERTY, NAME, QUOTA = "PROPERTY_VALIDATION", "NAME_CONFLICT_VALIDATION", "SERVICE_QUOTA_VALIDATION"
_HOOKS = {PROPERTY: "AWS::EarlyValidation::PropertyValidation", NAME: "AWS::EarlyValidation::ResourceExistenceCheck"}
STACK_FAILED = "Validation failure detected. See the operation's FAILED event for details"
_REQUIRED = "required key "
_COUNTED = {"AWS::EC2::VPC": account_quotas.VPCS, "AWS::EC2::EIP": account_quotas.ADDRESSES}


@dataclass(frozen=True)
class Validation:
    """A validation that failed, or would if its mode were not WARN. `path` leads to the place in the template."""

    logical_id: str
    reason: str
    name: str = PROPERTY
    mode: str = FAIL
    path: str = ""
    type: str = ""


class Planted:
    """What a fault plants: validations that fail, and how long change sets take."""

    def __init__(self) -> None:
        self.validations: tuple[Validation, ...] = ()
        self.takes_s = 0.0


PLANTED = Planted()


def find(
    wanted: Mapping[str, Declared], added: Collection[str], scope: Scope, region: str, account: str
) -> list[Validation]:
    """Return what is wrong with the resources of a change set, of which those in `added` are new."""
    values = _with_placeholders(wanted, scope)
    wrong = [one for declared in wanted.values() for one in _of_properties(declared, values)]
    return [*planted(wanted), *wrong, *_beyond_quotas([wanted[one] for one in wanted if one in added], region, account)]


def planted(wanted: Mapping[str, Declared]) -> list[Validation]:
    """Return the planted ones about these resources."""
    there = (one for one in PLANTED.validations if one.logical_id in wanted)
    return [replace(one, type=wanted[one.logical_id].type, path=one.path or _path(one.logical_id)) for one in there]


def failure(found: Sequence[Validation]) -> str:
    """Return the reason of a change set that failed; "" if none of these stops it."""
    hooks = dict.fromkeys(_HOOKS.get(one.name, _HOOKS[PROPERTY]) for one in found if one.mode == FAIL)
    if not hooks:
        return ""
    asked = "To troubleshoot Early Validation errors, use the DescribeEvents API for detailed failure information."
    return f"The following hook(s)/validation failed: [{', '.join(hooks)}]. {asked}"


def _path(logical_id: str) -> str:
    return f"/Resources/{logical_id}"


def _with_placeholders(wanted: Mapping[str, Declared], scope: Scope) -> Scope:
    """Return a scope in which resources that do not exist yet have a text for each value."""
    attributes = {name: dict.fromkeys(TYPES[one.type].attributes, name) for name, one in wanted.items()}
    return replace(scope, references={name: name for name in wanted}, attributes=attributes)


def _of_properties(declared: Declared, scope: Scope) -> Iterator[Validation]:
    try:
        properties = resolve(dict(declared.properties), scope)
    except (Refused, TypeError, ValueError, LookupError):
        return  # what only the values of resources decide
    for problem in problems(declared.type, properties):
        where, _, reason = problem.partition(": ")
        path = f"{_path(declared.logical_id)}/Properties{where.removeprefix('#')}"
        if reason.startswith(_REQUIRED):
            reason = f"Required property {reason.removeprefix(_REQUIRED)}"
        yield Validation(declared.logical_id, reason, path=path, type=declared.type)


def _beyond_quotas(added: Iterable[Declared], region: str, account: str) -> Iterator[Validation]:
    more: Counter[str] = Counter()
    for declared in added:
        code = _COUNTED.get(declared.type)
        if code is None:
            continue
        more[code] += 1
        limit, used = account_quotas.standing(code, region, account)
        if used + more[code] > limit:
            reason = f"Exceeds the service quota {code}: {used} of {limit:,} are in use"
            yield Validation(declared.logical_id, reason, QUOTA, WARN, _path(declared.logical_id), declared.type)


def described(found: Validation, operation: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a validation as an event of an operation, as DescribeEvents does."""
    return {
        **operation,
        "EventType": "VALIDATION_ERROR",
        "LogicalResourceId": found.logical_id,
        "PhysicalResourceId": None,
        "ResourceType": found.type,
        "ValidationFailureMode": found.mode,
        "ValidationName": found.name,
        "ValidationStatus": "FAILED",
        "ValidationStatusReason": found.reason,
        "ValidationPath": found.path,
    }
