"""Make a plan from a file, for the read-only commands `plan` and `template`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx import clouds

if TYPE_CHECKING:
    from phalanx.plan.plan import Facts, Plan
    from phalanx.spec.spec import ClusterSpec

offline_option = click.option(
    "--offline",
    is_flag=True,
    help="Contact no cloud (no credentials): use the sizes known here, and the region's zone a.",
)


def planned(file: Path, offline: bool = False) -> Plan:
    """Make the plan that `up` would carry out now; with `offline`, without contacting the cloud."""
    from phalanx.plan.plan import make_plan
    from phalanx.spec.spec_load import load, with_location

    spec = load(file)
    with with_location(file):
        return make_plan(spec, _offline_facts(spec) if offline else _facts(spec))


def _facts(spec: ClusterSpec) -> Facts:
    cloud = clouds.get(spec.cloud, spec.region)
    try:
        return cloud.facts(spec, "")
    finally:
        cloud.stop_if_idle()


def _offline_facts(spec: ClusterSpec) -> Facts:
    from phalanx.errors import SpecError
    from phalanx.plan.plan import offline_facts, unknown_type_hint

    facts = offline_facts(spec)
    if facts is None:
        hint = f"{unknown_type_hint(spec.type, spec.cloud)} Without --offline, the cloud is asked."
        raise SpecError(f"type: the sizes of {spec.type} are not known here", hint)
    return facts
