"""What CloudFormation refuses before it creates anything: one function per rule, with AWS's messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from localcloud.api.served.table import WITHOUT_EFFECT
from localcloud.cloudformation.errors import Refused
from localcloud.cloudformation.functions import PSEUDO_PARAMETERS, Reference, references
from localcloud.cloudformation.graph import find_cycle
from localcloud.cloudformation.model import Stack
from localcloud.cloudformation.resources import TYPES
from localcloud.cloudformation.schemas import known_types
from localcloud.cloudformation.template import Declared, Template

BODY_LIMIT_BYTES = 51_200
OBJECT_LIMIT_BYTES = 1_000_000
UPDATABLE = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")
STACK_NAME = re.compile(r"[a-zA-Z][-a-zA-Z0-9]{0,127}")
CREATION_POLICY_TYPES = (
    "AWS::AutoScaling::AutoScalingGroup",
    "AWS::EC2::Instance",
    "AWS::CloudFormation::WaitCondition",
    "AWS::AppStream::Fleet",
)
IAM_NAMES = ("RoleName", "InstanceProfileName", "UserName", "GroupName", "ManagedPolicyName")

_OFF = (False, "false", "False", 0, "0", "")

Rule = Callable[[Template], "str | None"]


def refuse_body(body: str, from_s3: bool = False) -> None:
    """Refuse a body above 51,200 bytes in a request, or above 1 MB in S3 (docs/aws-behaviour.md 1.14)."""
    size = len(body.encode())
    if not size:
        raise Refused("Either Template URL or Template Body must be specified.")
    if from_s3 and size > OBJECT_LIMIT_BYTES:
        raise Refused(f"Template may not exceed {OBJECT_LIMIT_BYTES} bytes in size.")
    if not from_s3 and size > BODY_LIMIT_BYTES:
        raise Refused(
            "1 validation error detected: Value at 'templateBody' failed to satisfy constraint: "
            f"Member must have length less than or equal to {BODY_LIMIT_BYTES}"
        )


def refuse_stack_name(name: str) -> None:
    """Refuse a name that does not match CreateStack's pattern."""
    if not STACK_NAME.fullmatch(name):
        raise Refused(
            f"1 validation error detected: Value '{name}' at 'stackName' failed to satisfy constraint: Member must "
            "satisfy regular expression pattern: [a-zA-Z][-a-zA-Z0-9]*|arn:[-a-zA-Z0-9:/._+]*"
        )


def refuse_update(stack: Stack) -> None:
    """Refuse an update of a stack in a state that has none (docs/aws-behaviour.md 1.31)."""
    if stack.status not in UPDATABLE:
        raise Refused(f"Stack:{stack.stack_id} is in {stack.status} state and can not be updated.")


def refuse_capabilities(template: Template, given: Collection[str]) -> None:
    """Refuse a template whose required capability was not given (docs/aws-behaviour.md 1.23)."""
    needed = required_capabilities(template)
    if needed and not {"CAPABILITY_NAMED_IAM", needed} & set(given):
        raise Refused(f"Requires capabilities : [{needed}]", "InsufficientCapabilitiesException")


def required_capabilities(template: Template) -> str:
    """Return the capability that the template's IAM resources require, or ""."""
    found = [item for item in template.resources.values() if item.type.startswith("AWS::IAM::")]
    if any(key in item.properties for item in found for key in IAM_NAMES):
        return "CAPABILITY_NAMED_IAM"
    return "CAPABILITY_IAM" if found else ""


def refuse_template(template: Template) -> None:
    """Raise Refused for the first rule that the template breaks."""
    for rule in RULES:
        reason = rule(template)
        if reason:
            raise Refused(reason)


def _too_many(template: Template) -> str | None:
    # docs/aws-behaviour.md 1.14, 1.28
    if len(template.parameters) > 200:
        return f"Template format error: Parameter count {len(template.parameters)} is greater than max allowed 200"
    for what, section, limit in (("resources", template.resources, 500), ("outputs", template.outputs, 200)):
        if len(section) > limit:
            return f"Template format error: Number of {what}, {len(section)}, is greater than maximum allowed, {limit}"
    return None


def _unknown_types(template: Template) -> str | None:
    # moto skips an unknown type and reports CREATE_COMPLETE.
    types = {item.type for item in template.resources.values()}
    if own := sorted(one for one in types if one.startswith("Custom::")):
        return f"The local cloud does not serve custom resources: [{', '.join(own)}]"
    unknown = sorted(types - set(known_types()))
    if unknown:
        return f"Template format error: Unrecognized resource types: [{', '.join(unknown)}]"
    absent = sorted(types - set(TYPES))
    return f"The local cloud does not support the resource types: [{', '.join(absent)}]" if absent else None


def _without_effect(template: Template) -> str | None:
    """Refuse properties for IPv6 and for ways to other networks, which nothing here would have."""
    for name, item in template.resources.items():
        asked = sorted(WITHOUT_EFFECT & {key for key, value in item.properties.items() if value not in _OFF})
        if asked and item.type.startswith("AWS::EC2::"):
            return f"The local cloud does not support the properties of {name} ({item.type}): [{', '.join(asked)}]"
    return None


def _undefined_conditions(template: Template) -> str | None:
    used = {item.condition for item in template.resources.values() if item.condition}
    used |= {str(output["Condition"]) for output in template.outputs.values() if "Condition" in output}
    everything = [item.properties for item in template.resources.values()], template.outputs, template.conditions
    used |= {reference.name for reference in _all(list(everything)) if reference.kind == "Condition"}
    missing = sorted(used - set(template.conditions))
    return f"Template format error: Unresolved condition dependency {missing[0]} in the template" if missing else None


def _all(value: Any) -> list[Reference]:
    return list(references(list(value) if isinstance(value, tuple) else value))


def _dangling_resources(template: Template) -> str | None:
    missing: set[str] = set()
    for item in template.resources.values():
        missing.update(name for name in item.depends_on if name not in template.resources)
        missing.update(_dangling(template, [item.properties, item.creation_policy, item.metadata]))
    return _unresolved(missing, "Resources")


def _dangling_outputs(template: Template) -> str | None:
    values = [{key: output[key] for key in output if key != "Condition"} for output in template.outputs.values()]
    return _unresolved(set(_dangling(template, values)), "Outputs")


def _dangling(template: Template, value: Any) -> Iterator[str]:
    for reference in references(value):
        if reference.kind == "Ref" and reference.name not in PSEUDO_PARAMETERS:
            if reference.name not in template.resources and reference.name not in template.parameters:
                yield reference.name
        elif reference.kind == "GetAtt" and reference.name not in template.resources:
            yield reference.name


def _unresolved(names: Iterable[str], block: str) -> str | None:
    listed = ", ".join(sorted(names))
    return (
        f"Template format error: Unresolved resource dependencies [{listed}] in the {block} block of the template"
        if listed
        else None
    )


def _conditions_use_resources(template: Template) -> str | None:
    for reference in references(list(template.conditions.values())):
        known = reference.name in template.parameters or reference.name in PSEUDO_PARAMETERS
        if reference.kind == "GetAtt" or (reference.kind == "Ref" and not known):
            return (
                f"Template format error: Unresolved dependencies [{reference.name}]. "
                "Cannot reference resources in the Conditions block of the template"
            )
    return None


def _unknown_attributes(template: Template) -> str | None:
    places = [item.properties for item in template.resources.values()] + list(template.outputs.values())
    for reference in references(places):
        if reference.kind == "GetAtt" and reference.attribute:
            kind = TYPES[template.resources[reference.name].type]
            if reference.attribute not in kind.attributes:
                return (
                    f"Template error: resource {reference.name} does not support "
                    f"attribute type {reference.attribute} in Fn::GetAtt"
                )
    return None


def _cycles(template: Template) -> str | None:
    cycle = find_cycle({name: dependencies(item, template.resources) for name, item in template.resources.items()})
    return f"Circular dependency between resources: [{', '.join(cycle)}]" if cycle else None


def dependencies(item: Declared, names: Collection[str]) -> set[str]:
    """Return the resources among `names` that must exist before `item` is created."""
    used = {
        reference.name
        for reference in references([item.properties, item.creation_policy, item.metadata])
        if reference.kind != "Condition"
    }
    return {name for name in (*used, *item.depends_on) if name in names}


def _outputs_without_value(template: Template) -> str | None:
    for name, output in template.outputs.items():
        if "Value" not in output:
            return f"Template format error: Every Outputs member must contain a Value object. [{name}]"
    return None


def _creation_policies(template: Template) -> str | None:
    # docs/aws-behaviour.md 1.7
    for item in template.resources.values():
        if item.creation_policy and item.type not in CREATION_POLICY_TYPES:
            return f"Template format error: CreationPolicy is not supported for {item.type} [{item.logical_id}]"
    return None


RULES: tuple[Rule, ...] = (
    _too_many,
    _unknown_types,
    _without_effect,
    _undefined_conditions,
    _conditions_use_resources,
    _dangling_resources,
    _dangling_outputs,
    _unknown_attributes,
    _cycles,
    _outputs_without_value,
    _creation_policies,
)
