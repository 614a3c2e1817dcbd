"""Mustache templates, as cfn-init renders a file that has a `context`."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

_TAG = re.compile(r"\{\{\{\s*(?P<raw>[^{}]+?)\s*\}\}\}|\{\{\s*(?P<kind>[#^/!&]?)\s*(?P<name>[^{}]*?)\s*\}\}")


def render(template: str, context: Any) -> str:
    """Return the template with the context's values: variables, sections, inverted sections and comments."""
    return _section(template, 0, "", (context,))[0]


def _section(template: str, begin: int, ends: str, stack: Sequence[Any]) -> tuple[str, int]:
    """Render from `begin` to the end of the section `ends`; return the text and where it ended."""
    parts = []
    while (tag := _TAG.search(template, begin)) is not None:
        parts.append(template[begin : tag.start()])
        begin = tag.end()
        kind, name = tag["kind"], tag["raw"] or tag["name"]
        if kind == "/" and name == ends:
            return "".join(parts), begin
        if kind in ("#", "^"):
            text, begin = _repeated(template, begin, kind, name, stack)
            parts.append(text)
        elif kind != "!":
            value = _text(_found(name, stack))
            parts.append(value if tag["raw"] or kind == "&" else html.escape(value))
    return "".join(parts) + template[begin:], len(template)


def _repeated(template: str, begin: int, kind: str, name: str, stack: Sequence[Any]) -> tuple[str, int]:
    value = _found(name, stack)
    items = value if isinstance(value, list) else [value] if value else []
    if kind == "^":
        items = [] if items else [None]
    text = "".join(_section(template, begin, name, (*stack, item))[0] for item in items)
    return text, _section(template, begin, name, stack)[1]


def _found(name: str, stack: Sequence[Any]) -> Any:
    if name == ".":
        return stack[-1]
    first, *rest = name.split(".")
    value = next((one[first] for one in reversed(stack) if isinstance(one, dict) and first in one), None)
    for key in rest:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _text(value: Any) -> str:
    return "" if value is None else str(value)
