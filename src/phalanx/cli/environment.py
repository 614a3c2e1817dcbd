"""The flags of `phalanx run` that say in which environment a job runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.cli.console import note

if TYPE_CHECKING:
    from phalanx.jobs.environments import Environment


def _recipes(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from phalanx.jobs.environments import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


# As environments.REQUIREMENTS, whose import costs.
_REQUIREMENTS = "requirements.txt"

_OPTIONS = (
    click.option(
        "--recipe",
        metavar="NAME",
        shell_complete=_recipes,
        help="Run in this environment, made at first use; `phalanx recipes` lists them.",
    ),
    click.option(
        "--requirements",
        metavar="FILE",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Run with these Python packages beside the image's.  [default: requirements.txt, where the code has one]",
    ),
    click.option("--no-requirements", is_flag=True, help="Without the code's requirements.txt."),
)


def environment_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--recipe, --requirements and --no-requirements; `chosen_environment` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen_environment(
    recipe: str | None, requirements: Path | None, no_requirements: bool, directory: Path
) -> Environment | None:
    """What the flags ask for; without a word, the code's own requirements.txt."""
    if sum((recipe is not None, requirements is not None, no_requirements)) > 1:
        raise click.UsageError("--recipe, --requirements and --no-requirements exclude each other")
    default = directory / _REQUIREMENTS
    if recipe is None and requirements is None and (no_requirements or not default.is_file()):
        return None
    from phalanx.jobs import environments  # here, because most jobs have none

    if recipe is not None and default.exists():
        note(f"{default} is left out: recipe {recipe} is the whole environment")
    return environments.choose(directory, recipe, requirements)
