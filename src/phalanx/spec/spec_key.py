"""A key of phalanx.yaml: a field of ClusterSpec with its rule, meaning and example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from phalanx.spec.spec_rules import Rule


class Needs(Enum):
    """What `up` needs for another value of a key while the cluster exists."""

    NOTHING = auto()
    """It counts from the next creation, start or job."""
    MEMBERS = auto()
    """More, fewer or other nodes, but nothing of the stack."""
    UPDATE = auto()
    """An update of the stack."""
    ANOTHER_CLUSTER = auto()
    """`up` refuses it."""


class Change(NamedTuple):
    """What another value of a key means for a cluster that exists; `effect` says when it takes effect."""

    needs: Needs
    effect: str


IN_PLACE = Change(Needs.UPDATE, "at once, in place")
NEW_MACHINES = Change(Needs.UPDATE, "on each new machine")
REFUSED = Change(Needs.ANOTHER_CLUSTER, "refused while the cluster exists")


def key(
    help: str,
    rule: Rule,
    example: Any,
    *,
    change: Change,
    unset: str = "",
    beside: Callable[[Any, Mapping[str, Any]], Any] | None = None,
    not_on_emr: tuple[str, str] | None = None,
    **default: Any,
) -> Any:
    """Return a field that is a key of phalanx.yaml; everything else about the key follows from it.

    change      what another value means for a cluster that exists
    unset       what applies without the key, where the default itself doesn't show it
    beside      a check that also depends on the fields above; it receives those that are valid
    not_on_emr  why a cluster of EMR can't have the key, and what to do
    """
    return field(**default, metadata={"key": (help, rule, example, change, unset, beside, not_on_emr)})


@dataclass(frozen=True)
class Key:
    """A key of phalanx.yaml, as its field of ClusterSpec defines it (see `key`)."""

    name: str
    field: str
    default: Any
    help: str
    rule: Rule
    example: Any
    change: Change
    unset: str
    beside: Callable[[Any, Mapping[str, Any]], Any] | None
    not_on_emr: tuple[str, str] | None

    @classmethod
    def of(cls, one: Field[Any]) -> Key:
        """Return the key of a field of ClusterSpec; the name of a field in seconds ends in `_s`, its key's does not."""
        return cls(one.name.removesuffix("_s"), one.name, one.default, *one.metadata["key"])

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def written_default(self) -> Any:
        """The default as it would be written in the file; None if it can't be written."""
        return self.rule.kind.written(self.default) if self.default not in (MISSING, None, "") else None

    def line(self, value: Any) -> str:
        """Return the key with a value as the file contains it; several lines for a text of several lines."""
        text = _flow(value)
        return "\n  ".join([f"{self.name}: |", *text.splitlines()]) if "\n" in text else f"{self.name}: {text}".rstrip()

    def accept(self, value: Any, above: Mapping[str, Any]) -> Any:
        """Return the value in its normal form. Raises WrongError."""
        if value is None and self.default is None:
            return None
        self.rule.kind.require(value)
        chosen = self.beside(value, above) if self.beside else value
        # An empty default that `beside` lets stand means that there is no value.
        return chosen if chosen == self.default == "" else self.rule.check(chosen)


def _flow(value: Any) -> str:
    """Return a value as YAML writes it in one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_flow(item)}' for name, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_flow, value))}]"
    return str(value)
