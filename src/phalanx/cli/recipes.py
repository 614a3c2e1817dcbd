"""phalanx recipes: list the environments that `run --recipe` creates."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.cli.console import note, print_json, print_table
from phalanx.cli.environment import complete_recipes
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster
from phalanx.cli.starting import start
from phalanx.errors import ClusterError, NewerFormat
from phalanx.jobs.environment_store import made_environments
from phalanx.jobs.environments import Recipe, recipe, recipe_names
from phalanx.jobs.job import JobSpec

if TYPE_CHECKING:
    from phalanx.jobs.environment_store import MadeEnvironment


@click.command("recipes")
@cluster_option
@json_option
@click.option("--remove-unused", is_flag=True, help="Remove every environment of the cluster that no job is using.")
@click.option(
    "--make", metavar="NAME", shell_complete=complete_recipes, help="Create this environment on all nodes now."
)
@debug_option
def command(name: str | None, file: Path | None, as_json: bool, remove_unused: bool, make: str | None) -> int:
    """List the environments that `phalanx run --recipe NAME` creates, and those that this cluster has.

    An environment is created at its first use, in the shared directory, and used again by every later job.

    \b
    Examples:
      phalanx recipes
      phalanx recipes --make torch
      phalanx recipes --remove-unused
      phalanx recipes --json | jq -r '.recipes[] | select(.launcher == "mpi") | .name'
    """
    if make is not None:
        return _make(make, name, file)
    recipes = [recipe(known) for known in recipe_names()]
    made = _made(name, file, remove_unused)
    removed = [one for one in made if one.removed]
    left = [one for one in made if not one.removed]
    if as_json:
        print_json({"recipes": [_record(one, left) for one in recipes], "environments": [vars(one) for one in made]})
        return 0
    if remove_unused:
        note(f"removed {len(removed)} ({_size(sum(one.bytes for one in removed))}); {len(left)} in use")
        return 0
    columns = ("RECIPE", "LAUNCHER", "PYTHON", "ON CLUSTER", "SUMMARY")
    print_table(columns, [_row(one, left) for one in recipes])
    others = [one for one in left if one.digest not in {one.environment.digest for one in recipes}]
    if others:
        note(f"Others, from requirements or older recipes: {len(others)} ({_size(sum(one.bytes for one in others))})")
    return 0


def _make(wanted: str, name: str | None, file: Path | None) -> int:
    """Create an environment by a job that needs it on every node, and does nothing there."""
    environment = recipe(wanted).environment
    cluster = load_cluster(name, file)
    cluster.require_ready()
    with tempfile.TemporaryDirectory() as nothing:
        directory = Path(nothing)
        spec = JobSpec(
            ("true",), "exec", per_node=1, name=f"make-{wanted}", directory=directory, environment=environment
        )
        return start(cluster, spec, detach=False)


def _made(name: str | None, file: Path | None, remove_unused: bool) -> list[MadeEnvironment]:
    """Return the environments of the chosen cluster; none if there is no cluster, unless it was named."""
    try:
        cluster = load_cluster(name, file)
        cluster.require_ready()
    except (ClusterError, NewerFormat):
        if name or file or remove_unused:
            raise
        return []
    return made_environments(cluster, remove_unused)


def _of(one: Recipe, made: list[MadeEnvironment]) -> MadeEnvironment | None:
    return next((found for found in made if found.digest == one.environment.digest and found.complete), None)


def _row(one: Recipe, made: list[MadeEnvironment]) -> tuple[object, ...]:
    found = _of(one, made)
    return one.name, one.launcher or "any", one.environment.python, _size(found.bytes) if found else "-", one.summary


def _record(one: Recipe, made: list[MadeEnvironment]) -> dict[str, Any]:
    found = _of(one, made)
    return {
        "name": one.name,
        "summary": one.summary,
        "launcher": one.launcher,
        "python": one.environment.python,
        "requirements": one.environment.files,
        "notes": one.notes,
        "made": found is not None,
        "bytes": found.bytes if found else None,
        "path": found.path if found else None,
    }


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
