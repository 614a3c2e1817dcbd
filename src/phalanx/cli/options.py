"""Options that commands share, and the cluster that they choose."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from phalanx import connection, guest_file
from phalanx.cluster.cluster_record import Cluster
from phalanx.data import table
from phalanx.spec.spec_checks import nearest
from phalanx.spec.spec_load import load, load_value
from phalanx.state_files import known

DEFAULT_FILE = "phalanx.yaml"


class ExistingPath(click.Path):
    """A path to what exists, on a file system that answers."""

    def __init__(self, **kinds: bool) -> None:
        super().__init__(exists=True, path_type=Path, **kinds)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        try:
            guest_file.answer(os.fspath(value), os.stat, value)
        except OSError as error:
            if error.errno == errno.ETIMEDOUT:
                self.fail(f"'{os.fspath(value)}': {error.strerror}", param, ctx)
        return super().convert(value, param, ctx)


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.find_root().ensure_object(dict)["debug"] = True


debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_debug, help="Show tracebacks of unexpected errors."
)
file_option = click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path),
    default=DEFAULT_FILE,
    show_default=True,
    help="The cluster's file.",
)


def known_region(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Refuse what is no region of AWS, as phalanx.yaml does."""
    regions = table("regions")["regions"]
    if value is not None and value not in regions:
        raise click.BadParameter(f"'{value}' is not an AWS region; {nearest(value, regions)}")
    return value


region_option = click.option(
    "--region", default="us-east-1", show_default=True, callback=known_region, help="The region."
)


def _split(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Split each value into words, as a shell does."""
    try:
        return tuple(word for value in values for word in shlex.split(value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


via_option = click.option(
    "--via-option",
    "via_options",
    multiple=True,
    metavar="TEXT",
    callback=_split,
    help="Pass this to the batch system unchanged: a queue, a time limit. Repeatable.",
)
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Show each resource and node, on a terminal too.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")


quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print only what the job writes, and its failure.")


class Theirs(click.Option):
    """An option of another tool's command line, which a command of ours takes with the meaning that it has there."""


def _json(context: click.Context, _: click.Parameter, value: bool) -> bool:
    """Have errors reported as JSON, too."""
    context.find_root().ensure_object(dict)["json"] = value
    return value


json_option = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, callback=_json, help="Print JSON instead of text."
)


def complete_clusters(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of the clusters that this machine has a record of."""
    return [name for name in known() if name.startswith(incomplete)]


def cluster_option(function: Decorated) -> Decorated:
    """Add -c NAME and --file FILE as the parameters `name` and `file`, None by default."""
    return cluster_option_of("-c", "--cluster")(function)


def cluster_option_of(*flags: str) -> Callable[[Decorated], Decorated]:
    """Return the same options, with these flags for the name."""

    def added(function: Decorated) -> Decorated:
        named = click.option(
            *flags,
            "name",
            metavar="NAME",
            help="The cluster's name. Without it: that of phalanx.yaml.",
            shell_complete=complete_clusters,
        )(function)
        path = click.Path(path_type=Path)
        return click.option("--file", "file", type=path, help="The cluster's file. It names the cluster.")(named)

    return added


def cluster_name(name: str | None, file: Path | None) -> str | None:
    """Return the chosen name: -c, the name in the file, or None for the only cluster that this machine knows."""
    if name:
        return name
    path = file or Path(DEFAULT_FILE)
    if not guest_file.answer(path, path.exists) and not file:
        return None
    return load_value(path, "name") or load(path).name


def load_cluster(name: str | None, file: Path | None) -> Cluster:
    """Load the chosen cluster, with its cloud's API, which provides the roster and helps when ssh fails."""
    return connection.attached(Cluster.load(cluster_name(name, file)))
