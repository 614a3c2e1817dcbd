"""Tables that phalanx knows offline (instance types, prices, images, regions, quotas): data, not code."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def table(name: str) -> dict[str, Any]:
    """The table `<name>.json` of this directory; its `_source` says where it is from and when it was checked."""
    return json.loads((files("phalanx.data") / f"{name}.json").read_text(encoding="utf-8"))
