"""A plan from a file, for the commands that only look: `plan` and `template`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from phalanx import clouds

if TYPE_CHECKING:
    from phalanx.plan import Plan


def planned(file: Path) -> Plan:
    """The plan that `up` would carry out now."""
    from phalanx.plan import make_plan
    from phalanx.spec import load

    spec = load(file)
    cloud = clouds.get(spec.cloud, spec.region)
    try:
        return make_plan(spec, cloud.facts(spec, ""))
    finally:
        cloud.stop_if_idle()
