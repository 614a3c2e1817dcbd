"""A plan from a file, for the commands that only look: `plan` and `template`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx import clouds

if TYPE_CHECKING:
    from phalanx.plan import Facts, Plan
    from phalanx.spec import ClusterSpec

offline_option = click.option(
    "--offline", is_flag=True, help="Ask no cloud (no credentials): sizes as known here, the region's zone a."
)


def planned(file: Path, offline: bool = False) -> Plan:
    """The plan that `up` would carry out now; `offline`, one that nobody was asked about."""
    from phalanx.plan import make_plan
    from phalanx.spec import load, told_where

    spec = load(file)
    with told_where(file):
        return make_plan(spec, _offline_facts(spec) if offline else _facts(spec))


def _facts(spec: ClusterSpec) -> Facts:
    cloud = clouds.get(spec.cloud, spec.region)
    try:
        return cloud.facts(spec, "")
    finally:
        cloud.stop_if_idle()


def _offline_facts(spec: ClusterSpec) -> Facts:
    from phalanx.errors import SpecError
    from phalanx.plan import offline_facts, unknown_type_hint

    facts = offline_facts(spec)
    if facts is None:
        hint = f"{unknown_type_hint(spec.type, spec.cloud)} Without --offline the cloud is asked."
        raise SpecError(f"type: the sizes of {spec.type} are not known here", hint)
    return facts
