"""The flags of `phalanx run` that choose a job's environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.cli.console import note
from phalanx.cli.job_options import pairs
from phalanx.cli.options import ExistingPath
from phalanx.counts import first_of
from phalanx.jobs import environments, package_files
from phalanx.jobs.environments import recipe_names
from phalanx.jobs.requirements_file import by_text_only

if TYPE_CHECKING:
    from phalanx.jobs.environments import Environment


def complete_recipes(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the recipes whose names begin so, for the shell's completion."""
    return [name for name in recipe_names() if name.startswith(incomplete)]


_MOST_NAMED = 3
ENVIRONMENT = ("recipe", "requirements", "no_requirements", "build_env")
"""The parameters that `chosen_environment` takes."""

_OPTIONS = (
    click.option(
        "--recipe",
        metavar="NAME",
        shell_complete=complete_recipes,
        help="Run in this environment. It is created at first use; `phalanx recipes` lists them.",
    ),
    click.option(
        "--requirements",
        metavar="FILE",
        type=ExistingPath(dir_okay=False),
        help="Add these Python packages to the image's: those of a script's `# /// script`, a pylock.toml, a uv.lock or"
        " a requirements.txt.  [default: the first of these that the code has]",
    ),
    click.option("--no-requirements", is_flag=True, help="Install nothing that the code's files name."),
    click.option(
        "--build-env",
        multiple=True,
        metavar="NAME=value",
        callback=pairs,
        help="Set a variable for pip and compilers, as --env does for the job's processes. Repeatable.",
    ),
)


def environment_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --recipe, --requirements and the like, which `chosen_environment` reads."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen_environment(
    directory: Path,
    recipe: str | None,
    requirements: Path | None,
    no_requirements: bool,
    build_env: dict[str, str],
    command: Sequence[str] = (),
) -> Environment | None:
    """Return the environment that the flags choose, or by default that of the file in the code that names packages."""
    if requirements is not None and no_requirements:
        raise click.UsageError("--requirements and --no-requirements exclude each other")
    found = package_files.find(directory, command) if requirements is None and not no_requirements else None
    if found and recipe:
        note(f"{found} is installed on top of the recipe {recipe}; --no-requirements leaves it out")
    elif found and found.name != package_files.REQUIREMENTS:
        note(f"packages: those of {found.name}; --no-requirements leaves them out")
    chosen = environments.choose(
        directory, recipe, False if no_requirements else requirements, build_env, command, note
    )
    if places := by_text_only(chosen.files) if chosen else []:
        named = first_of((place.removeprefix("own/") for place in places), most=_MOST_NAMED)
        note(
            f"{named}: phalanx does not see when the content behind such a URL changes. Jobs use what was "
            "installed first until you change the line, or run `phalanx recipes --remove-unused`"
        )
    return chosen
