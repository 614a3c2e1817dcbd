"""Make a plan from a file, for the read-only commands `plan` and `template`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx import clouds

if TYPE_CHECKING:
    from phalanx.plan.plan import Facts, Plan
    from phalanx.spec.spec import ClusterSpec

# A person waits, and the tables can answer as well.
_ATTEMPTS = 3

offline_option = click.option(
    "--offline",
    is_flag=True,
    help="Do not ask the cloud: use the sizes known here, and the first of `zones` or the region's zone a.",
)


def planned(file: Path, offline: bool = False) -> Plan:
    """Make the plan that `up` would carry out now; with `offline`, without contacting the cloud.

    Without credentials or a connection it is made from the tables, too, and `facts.not_asked` is the reason.
    """
    from phalanx.plan.plan import make_plan
    from phalanx.spec.spec_load import load, with_location

    spec = load(file)
    with with_location(file):
        return make_plan(spec, _offline_facts(spec, "as requested") if offline else _facts(spec))


def unsuited_recipes(plan: Plan) -> list[str]:
    """Return a warning for each kind of Python that recipes need and the image lacks; none on the local cloud."""
    from phalanx.jobs.environments import recipes_by_python, runs_on
    from phalanx.plan.machine_images import with_python
    from phalanx.plan.plan import image_choice

    pythons = image_choice(plan.spec, plan.facts).pythons
    if plan.spec.cloud == "local" or not pythons:
        return []
    return [
        f"the recipes {', '.join(names)} need Python {needed}, and the image has {' and '.join(pythons)}: install one "
        f"by `boot:`, or choose {' or '.join(with_python(runs_on(needed)))}"
        for needed, names in recipes_by_python().items()
        if not any(map(runs_on(needed), pythons))
    ]


def _facts(spec: ClusterSpec) -> Facts:
    from phalanx.errors import CloudUnreachable

    cloud = clouds.get(spec.cloud, spec.region)
    cloud.limit_attempts(_ATTEMPTS)
    try:
        return cloud.facts(spec, "")
    except CloudUnreachable as error:
        if spec.cloud == "local":
            raise
        return _offline_facts(spec, error.message)
    finally:
        cloud.stop_if_idle()


def _offline_facts(spec: ClusterSpec, why: str) -> Facts:
    from phalanx.errors import SpecError
    from phalanx.plan.plan import offline_facts, unknown_type_hint

    facts = offline_facts(spec, not_asked=why)
    if facts is None:
        hint = f"{unknown_type_hint(spec.type, spec.cloud)} The cloud, which may know it, was not asked: {why}."
        raise SpecError(f"type: the sizes of {spec.type} are not known here", hint)
    return facts
