"""The tables that phalanx has offline: instance types, prices, images, regions, quotas."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def table(name: str) -> dict[str, Any]:
    """Load the table `<name>.json` of this directory; its `_source` names its origin and the date of the last check."""
    return json.loads(location(name).read_text(encoding="utf-8"))


def location(name: str) -> Path:
    """Return the file of a table, for programs that do not import this package."""
    return Path(__file__).with_name(f"{name}.json")
