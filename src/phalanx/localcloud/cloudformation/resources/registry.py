"""Resource types by name: how each is made and unmade."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.localcloud.context import Context


@dataclass(frozen=True)
class Made:
    """A created resource: what Ref and GetAtt answer. `pending`: it counts as created when `settled` is called."""

    physical_id: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    pending: bool = False


@dataclass(frozen=True)
class Request:
    """What a resource type gets to work with.

    `properties` are resolved. `settled(error)` ends a pending creation or deletion, from any thread:
    None when it worked, else the reason. `tags` are the stack's, AWS's own included. `stays`: without its stack, too.
    """

    context: Context
    region: str
    stack_name: str
    stack_id: str
    logical_id: str
    properties: Mapping[str, Any]
    tags: Mapping[str, str]
    settled: Callable[[str | None], None]
    stays: bool = False

    def name(self, key: str, limit: int) -> str:
        """The property `key` if given, else a unique physical name of at most `limit` characters."""
        given = self.properties.get(key)
        if given:
            return str(given)
        suffix = "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(12))
        room = limit - len(suffix) - 2
        logical = self.logical_id[: max(room // 2, room - len(self.stack_name))]
        return f"{self.stack_name[: room - len(logical)]}-{logical}-{suffix}"

    def tag_list(self, key: str = "Tags") -> list[dict[str, str]]:
        """The stack's tags and the resource's own, as a list of Key and Value."""
        return [{"Key": name, "Value": value} for name, value in self.tag_map(key).items()]

    def tag_map(self, key: str = "Tags") -> dict[str, str]:
        """The same as a mapping; the resource's own tags win."""
        own = {str(tag["Key"]): str(tag["Value"]) for tag in self.properties.get(key) or []}
        return {**self.tags, **own}


Create = Callable[[Request], Made]
Delete = Callable[[Request, str], "bool | None"]


@dataclass(frozen=True)
class ResourceType:
    """How a type is created and deleted; `attributes` are the names that GetAtt takes.

    `delete` gives True when the deletion is pending, to be ended by `settled`; it is silent when the thing is gone.
    """

    create: Create
    delete: Delete
    attributes: frozenset[str]


TYPES: dict[str, ResourceType] = {}


def resource(name: str, delete: Delete, attributes: str = "") -> Callable[[Create], Create]:
    """Registers the decorated function as the creator of type `name`; `attributes` is a list parted by spaces."""

    def register(create: Create) -> Create:
        TYPES[name] = ResourceType(create, delete, frozenset(attributes.split()))
        return create

    return register


@contextmanager
def all_or_nothing(delete: Delete, request: Request, physical_id: str) -> Iterator[None]:
    """Around the steps after the first: when one fails, what was made by then is deleted; the stack never knew it."""
    try:
        yield
    except BaseException:
        delete(request, physical_id)
        raise


def nothing(request: Request, physical_id: str) -> None:
    """For types whose end comes with the end of something else."""
