"""The registry of resource types: how each is created, changed in place, and deleted."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localcloud.context import Context


@dataclass(frozen=True)
class Made:
    """A created resource: its Ref and GetAtt values. If `pending`, it is complete when `settled` is called."""

    physical_id: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    pending: bool = False


@dataclass(frozen=True)
class Request:
    """The arguments of a creation, a change or a deletion.

    `properties` are resolved. `settled(error)` ends a pending creation or deletion, from any thread, with the reason
    of a failure or None. `tags` are the stack's, including AWS's own. `retained`: the resource outlives its stack.
    `update_policy` is what the template says of updates.
    """

    context: Context
    region: str
    stack_name: str
    stack_id: str
    logical_id: str
    properties: Mapping[str, Any]
    tags: Mapping[str, str]
    settled: Callable[[str | None], None]
    retained: bool = False
    update_policy: Mapping[str, Any] = field(default_factory=dict)

    def name(self, key: str, limit: int) -> str:
        """Return the property `key`, or else a unique physical name of at most `limit` characters."""
        given = self.properties.get(key)
        if given:
            return str(given)
        suffix = "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(12))
        room = limit - len(suffix) - 2
        logical = self.logical_id[: max(room // 2, room - len(self.stack_name))]
        return f"{self.stack_name[: room - len(logical)]}-{logical}-{suffix}"

    def tag_list(self, key: str = "Tags") -> list[dict[str, str]]:
        """Return the stack's and the resource's tags as a list of Key and Value."""
        return [{"Key": name, "Value": value} for name, value in self.tag_map(key).items()]

    def tag_map(self, key: str = "Tags") -> dict[str, str]:
        """Return the stack's and the resource's tags as a mapping; the resource's take precedence."""
        own = {str(tag["Key"]): str(tag["Value"]) for tag in self.properties.get(key) or []}
        return {**self.tags, **own}


Create = Callable[[Request], Made]
Delete = Callable[[Request, str], "bool | None"]
# Called with what is wanted now and what was before; returns the GetAtt values if they have changed.
Update = Callable[[Request, Request, str], "Mapping[str, Any] | None"]


@dataclass(frozen=True)
class ResourceType:
    """How a type is created and deleted; `attributes` are the names that GetAtt accepts.

    `delete` returns True when the deletion is pending until `settled`. It does nothing for a resource that is gone.
    `update` changes the `updatable` properties, and the tags, of a resource that stays; None if there is no such way.
    """

    create: Create
    delete: Delete
    attributes: frozenset[str]
    update: Update | None = None
    updatable: frozenset[str] = frozenset()


TYPES: dict[str, ResourceType] = {}


def resource(name: str, delete: Delete, attributes: str = "") -> Callable[[Create], Create]:
    """Register the decorated function as the creator of type `name`; `attributes` are separated by spaces."""

    def register(create: Create) -> Create:
        TYPES[name] = ResourceType(create, delete, frozenset(attributes.split()))
        return create

    return register


def updates(name: str, updatable: str = "") -> Callable[[Update], Update]:
    """Register the decorated function as what changes these properties of type `name`, separated by spaces."""

    def register(update: Update) -> Update:
        TYPES[name] = replace(TYPES[name], update=update, updatable=frozenset(updatable.split()))
        return update

    return register


@contextmanager
def all_or_nothing(delete: Delete, request: Request, physical_id: str) -> Iterator[None]:
    """Delete the resource when a later step of its creation fails: the stack does not know of it yet."""
    try:
        yield
    except BaseException:
        delete(request, physical_id)
        raise


def nothing(request: Request, physical_id: str) -> None:
    """Delete nothing: for types that end with another resource."""
