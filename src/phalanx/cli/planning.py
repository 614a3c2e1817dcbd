"""Make a plan from a file, for the read-only commands `plan` and `template`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx import connection
from phalanx.cli.console import note
from phalanx.errors import CloudUnreachable, SpecError
from phalanx.jobs.environments import recipe_pythons, runs_on
from phalanx.plan import each_type
from phalanx.plan.machine_images import with_python
from phalanx.plan.not_checked import not_checked
from phalanx.plan.plan import image_choice, make_plan, offline_facts, unknown_type_hint
from phalanx.spec.cloud_names import is_local
from phalanx.spec.spec_load import load, with_location

if TYPE_CHECKING:
    from phalanx.plan.plan import Facts, Plan
    from phalanx.spec.spec import ClusterSpec

# A person waits, and the tables can answer as well.
_ATTEMPTS = 3

offline_option = click.option(
    "--offline",
    is_flag=True,
    help="Don't ask the cloud. Use the sizes that phalanx knows, and the first of `zones` or the region's zone a.",
)


def planned(file: Path, offline: bool = False, ends_idle: bool = True) -> Plan:
    """Make the plan that `up` would carry out now; with `offline`, without contacting the cloud.

    A local cloud without clusters is ended then if `ends_idle`: `up` may just have started it in another process.

    Without credentials or a connection it is made from the tables, too, and `facts.not_asked` is the reason.
    """
    spec = load(file)
    with with_location(file):
        return make_plan(spec, _offline_facts(spec, "as requested") if offline else _facts(spec, ends_idle))


def note_unchecked(plan: Plan) -> None:
    """Say, beside a document, what of the plan behind it nobody has checked."""
    for one in not_checked(plan):
        note(f"not checked: {one}")


def unsuited_recipes(plan: Plan) -> dict[str, str]:
    """Return the recipes that the image has no Python for, with the versions that they need; none if it is unknown."""
    pythons = image_choice(plan.spec, plan.facts).pythons
    if is_local(plan.spec.cloud) or not pythons:
        return {}
    return {name: needed for name, needed in recipe_pythons().items() if not any(map(runs_on(needed), pythons))}


def unsuited_text(unsuited: dict[str, str]) -> str:
    """Describe these recipes, and name the images that have a Python for all of them."""
    listed = ", ".join(f"{name} ({needed})" for name, needed in unsuited.items())
    able = set.intersection(*(set(with_python(runs_on(needed))) for needed in unsuited.values()))
    choice = f" {' and '.join(sorted(able))} would have one." if able else ""
    return f"The image has no Python for these recipes: {listed}. uv brings one from GitHub.{choice}"


def _facts(spec: ClusterSpec, ends_idle: bool) -> Facts:
    cloud = connection.connect(spec.cloud, spec.region)
    cloud.limit_attempts(_ATTEMPTS)
    try:
        return cloud.site.facts(spec, "")
    except CloudUnreachable as error:
        if is_local(spec.cloud):
            raise
        return _offline_facts(spec, error.message)
    finally:
        if ends_idle:
            cloud.site.stop_if_idle()


def _offline_facts(spec: ClusterSpec, why: str) -> Facts:
    return each_type.look_up(spec, lambda one: _from_tables(one, why), make_plan)


def _from_tables(spec: ClusterSpec, why: str) -> Facts:
    facts = offline_facts(spec, not_asked=why)
    if facts is None:
        hint = f"{unknown_type_hint(spec.type, spec.cloud)} The cloud, which may know it, was not asked: {why}."
        raise SpecError(f"type: the sizes of {spec.type} are not known here", hint, code="unknown-sizes")
    return facts
