"""The tables that phalanx has offline: instance types, prices, images, regions, quotas."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def table(name: str) -> dict[str, Any]:
    """Load the table `<name>.json` of this directory; its `_source` names its origin and the date of the last check."""
    return json.loads((files("phalanx.data") / f"{name}.json").read_text(encoding="utf-8"))
