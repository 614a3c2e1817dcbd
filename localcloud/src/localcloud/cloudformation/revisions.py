"""Revisions of a stack: what an update would change of it, and whether CloudFormation would replace a resource for it.

What a property takes to change is in AWS's resource schemas: `createOnlyProperties` replace the resource, and
`conditionalCreateOnlyProperties` may do so (docs/aws-behaviour.md 1.29).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from localcloud.cloudformation.errors import Refused
from localcloud.cloudformation.functions import Scope, references, resolve
from localcloud.cloudformation.graph import Walk
from localcloud.cloudformation.inputs import Input
from localcloud.cloudformation.model import Resource, Stack
from localcloud.cloudformation.resources import TYPES
from localcloud.cloudformation.schemas import recreation, tag_property, takes_tags
from localcloud.cloudformation.template import Declared, Template

PROPERTIES, METADATA, TAGS = "Properties", "Metadata", "Tags"
NEVER, ALWAYS = "Never", "Always"
STATIC, DYNAMIC = "Static", "Dynamic"


class OtherTypes(Refused):
    """A template gives resources another type: UpdateStack refuses it, and a change set FAILs (1.31)."""


@dataclass(frozen=True)
class Revision:
    """What a stack is to be: a template with everything that it needs. `wanted` are the resources it declares.

    `role` is the ARN of the role with whose rights it becomes that, "" for those of the caller.
    """

    template: Template
    inputs: dict[str, Input]
    tags: dict[str, str]
    capabilities: list[str]
    scope: Scope
    wanted: Mapping[str, Declared]
    dependencies: dict[str, set[str]]
    token: str | None = None
    role: str = ""


@dataclass(frozen=True)
class Detail:
    """A reason why a resource changes. `name` is that of a property, `cause` the parameter or resource behind it."""

    attribute: str
    name: str = ""
    recreation: str = NEVER
    evaluation: str = STATIC
    source: str = "DirectModification"
    cause: str = ""


@dataclass(frozen=True)
class Change:
    """What happens to a resource: `action` is Add, Modify or Remove."""

    action: str
    logical_id: str
    resource_type: str
    physical_id: str = ""
    details: tuple[Detail, ...] = ()

    @property
    def replacement(self) -> str:
        """Whether the resource is replaced: True, False or Conditional."""
        needs = {(one.recreation, one.evaluation) for one in self.details}
        if (ALWAYS, STATIC) in needs:
            return "True"
        return "Conditional" if any(recreation != NEVER for recreation, _ in needs) else "False"

    @property
    def scope(self) -> list[str]:
        """The parts of the resource that change."""
        return sorted({one.attribute for one in self.details})


def changes(stack: Stack, revision: Revision) -> list[Change]:
    """Return what an update to `revision` changes, in the order of the dependencies, and what it removes last."""
    _refuse_other_types(stack, revision)
    found: dict[str, Change] = {}
    # The values of what is there already; what is made or changed by the update has others, which are not known yet.
    scope = replace(revision.scope, references={}, attributes={})
    for name in _in_order(revision.dependencies):
        resource = stack.resources.get(name)
        if resource is None or not resource.exists:
            found[name] = Change("Add", name, revision.wanted[name].type)
            continue
        scope.references[name], scope.attributes[name] = resource.physical_id, resource.attributes
        details = tuple(_Comparison(stack, revision, scope, found).details(resource, revision.wanted[name]))
        if details:
            found[name] = Change("Modify", name, resource.declared.type, resource.physical_id, details)
    removed = [one for name, one in reversed(stack.resources.items()) if name not in revision.wanted and one.exists]
    gone = [Change("Remove", one.declared.logical_id, one.declared.type, one.physical_id) for one in removed]
    return [*found.values(), *gone]


def outputs_change(stack: Stack, revision: Revision) -> bool:
    """Whether the template declares other outputs than before."""
    return stack.template.outputs != revision.template.outputs


def refuse_unserved(found: list[Change]) -> None:
    """Refuse, by name, changes of types or properties that the local cloud can't change in place."""
    for change in found:
        kind = TYPES[change.resource_type]
        if change.action != "Modify" or change.replacement == "True":
            continue
        names = [one.name for one in change.details if one.attribute == PROPERTIES and one.evaluation == STATIC]
        served = {*kind.updatable, tag_property(change.resource_type)} if kind.update else set()
        unserved = [name for name in names if name not in served]
        if unserved or (kind.update is None and TAGS in change.scope):
            what = f"{', '.join(unserved) or 'the tags'} of {change.logical_id} ({change.resource_type})"
            raise Refused(f"The local cloud can't change {what} in place")


def _refuse_other_types(stack: Stack, revision: Revision) -> None:
    both = stack.resources.keys() & revision.wanted.keys()
    other = sorted(name for name in both if stack.resources[name].declared.type != revision.wanted[name].type)
    if other:
        raise OtherTypes(
            "Update of resource type is not permitted. The new template modifies resource type of the following "
            f"resources: [{', '.join(other)}]"
        )


def _in_order(dependencies: Mapping[str, set[str]]) -> Iterator[str]:
    walk = Walk(dependencies)
    while names := walk.ready():
        for name in names:
            walk.done(name)
            yield name


@dataclass(frozen=True)
class _Comparison:
    """One resource as it is and as it is to be. `found` are the changes of those that it may refer to."""

    stack: Stack
    revision: Revision
    scope: Scope
    found: Mapping[str, Change]

    def details(self, resource: Resource, wanted: Declared) -> Iterator[Detail]:
        names = dict.fromkeys([*wanted.properties, *resource.properties])
        for name in names:
            yield from self._of_property(resource, wanted, name)
        if self._differs(resource.metadata, dict(wanted.metadata)):
            yield Detail(METADATA)
        if self.stack.tags != self.revision.tags and takes_tags(wanted.type):
            yield Detail(TAGS)

    def _of_property(self, resource: Resource, wanted: Declared, name: str) -> Iterator[Detail]:
        before, now = resource.declared.properties.get(name), wanted.properties.get(name)
        needs = recreation(wanted.type, name)
        causes = list(self._unknown(now))
        if causes:
            yield Detail(PROPERTIES, name, needs, DYNAMIC, *causes[0])
        elif self._differs(resource.properties.get(name), now):
            yield Detail(PROPERTIES, name, needs, STATIC, *self._cause(before, now))

    def _differs(self, before: Any, now: Any) -> bool:
        return any(self._unknown(now)) or before != resolve(now, self.scope)

    def _unknown(self, value: Any) -> Iterator[tuple[str, str]]:
        """Yield the source and the name of each reference whose value is only known during the update."""
        for reference in references(value):
            change = self.found.get(reference.name)
            if change is None or reference.kind == "Condition":
                continue
            if reference.kind == "GetAtt":
                yield "ResourceAttribute", f"{reference.name}.{reference.attribute}"
            elif change.action == "Add" or change.replacement != "False":
                yield "ResourceReference", reference.name

    def _cause(self, before: Any, now: Any) -> tuple[str, str]:
        """Return the source of a change: a parameter with another value, or the template itself."""
        used = [one.name for one in references(now) if one.name in self.revision.inputs]
        differing = [name for name in used if self.stack.inputs.get(name) != self.revision.inputs[name]]
        return ("ParameterReference", differing[0]) if before == now and differing else ("DirectModification", "")
