"""Puts a check before a method of moto's. A check raises AWS's error, or changes an argument as AWS would.

Otherwise the method runs as if nothing was.
"""

from __future__ import annotations

import functools
import inspect
import ipaddress
from collections.abc import Callable
from typing import Any

from localcloud.context import Context

# The method's object, and its arguments by name, those with defaults included.
Check = Callable[[Any, "Given"], None]
_checks: dict[tuple[type, str], list[Check]] = {}
_signatures: dict[tuple[type, str], inspect.Signature] = {}


class Given(dict[str, Any]):
    """The arguments of a call, as attributes."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


def before(owner: type, *methods: str) -> Callable[[Check], Check]:
    """Register the decorated function as a check before these methods of a class of moto's."""

    def register(check: Check) -> Check:
        for method in methods:
            _signatures.setdefault((owner, method), inspect.signature(getattr(owner, method)))
            _checks.setdefault((owner, method), []).append(check)
        return check

    return register


def patched() -> tuple[str, ...]:
    """Return the dotted names of all methods that have checks."""
    return tuple(f"{owner.__module__}.{owner.__qualname__}.{method}" for owner, method in _checks)


def install(_context: Context) -> None:
    """Put the checks before moto's methods; a method that another part of the local cloud replaced keeps its part."""
    for (owner, name), checks in _checks.items():
        method = getattr(owner, name)
        if not getattr(method, "is_checked", False):
            setattr(owner, name, _checked(method, _signatures[owner, name], checks))


def _checked(method: Callable[..., Any], signature: inspect.Signature, checks: list[Check]) -> Callable[..., Any]:
    @functools.wraps(method)
    def checked(self: Any, *args: Any, **named: Any) -> Any:
        bound = signature.bind(self, *args, **named)
        bound.apply_defaults()
        given = Given(bound.arguments)
        for check in checks:
            check(self, given)
        bound.arguments.update(given)
        return method(*bound.args, **bound.kwargs)

    setattr(checked, "is_checked", True)  # noqa: B010 - a function's own attribute
    return checked


def canonical(block: Any) -> Any:
    """Return a network without the host's bits, as EC2 keeps it; another text as it is, for moto to refuse."""
    try:
        return str(ipaddress.ip_network(block, strict=False))
    except ValueError:
        return block
