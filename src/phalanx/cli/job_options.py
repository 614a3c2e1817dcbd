"""The flags of `phalanx run` that are fields of JobSpec, generated from its definition; and NAME=value pairs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import click

from phalanx import guest_file
from phalanx.cli import complete
from phalanx.cli.options import ExistingPath
from phalanx.jobs.job_model import JobSpec
from phalanx.runner.files.job_record import ON_STALL
from phalanx.runner.files.schema import LARGEST_PRIORITY
from phalanx.spec.spec_checks import WrongError, duration_s
from phalanx.spec.spec_job import exit_codes


def pairs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=value pairs; a value may contain further equal signs."""
    for value in values:
        if "=" not in value or value.startswith("="):
            raise click.BadParameter(f"'{value}' is not of the form NAME=value")
    return dict(value.split("=", 1) for value in values)


def _of_files(_: click.Context, __: click.Parameter, paths: tuple[Path, ...]) -> dict[str, str]:
    """Read NAME=value from each line of these files; a value is never shown, as it may be secret."""
    return {name: value for path in paths for name, value in _of_file(path)}


def _of_file(path: Path) -> Iterator[tuple[str, str]]:
    try:
        text = guest_file.read_named(path, _LARGEST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"can't read {path}: {getattr(error, 'strerror', '') or 'it is not UTF-8'}") from None
    # A value keeps other characters that Unicode calls line ends or spaces.
    for number, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.strip(_BLANKS).removeprefix("export ").partition("=")
        if not name or name.startswith("#"):
            continue
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name.strip(_BLANKS)):
            raise click.BadParameter(f"{path}:{number} is not of the form NAME=value")
        quoted = re.fullmatch(r"""(['"])(.*)\1""", value.strip(_BLANKS))
        yield name.strip(_BLANKS), quoted[2] if quoted else value.strip(_BLANKS)


env_file_option = click.option(
    "--env-file",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    callback=_of_files,
    help="Variables for the job, NAME=value on each line. Repeatable; --env takes precedence.",
)


class Duration(click.ParamType):
    """A time in whole seconds, written as 90, 90s, 15m or 1h30m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seconds."""
        if isinstance(value, int):
            return value
        try:
            return int(value) if value.isdecimal() else duration_s(value)
        except WrongError:
            self.fail(f"'{value}' is not a time such as 90s, 15m or 1h30m", param, ctx)


class ExitCodes(click.ParamType):
    """Exit codes, written as 75,137."""

    name = "exit codes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the codes."""
        if isinstance(value, tuple):
            return value
        try:
            return exit_codes(value)
        except WrongError as error:
            self.fail(str(error), param, ctx)


_LARGEST_BYTES = 1 << 20
_BLANKS = " \t\r"
# By the type of the field, as the class spells it.
_KINDS: dict[str, dict[str, Any]] = {
    "Optional[int]": {"type": click.IntRange(1)},
    "int": {"type": click.IntRange(0)},
    "bool": {"is_flag": True},
    "Optional[str]": {"metavar": "TEXT"},
    "str": {"type": click.Choice(ON_STALL)},
    "Tuple[int, ...]": {"type": ExitCodes(), "metavar": "CODES"},
    "Tuple[str, ...]": {"multiple": True, "metavar": "JOB"},
    "Path": {"type": ExistingPath(file_okay=False)},
    "Mapping[str, str]": {"multiple": True, "metavar": "NAME=value", "callback": pairs},
}


# What a value names, where its type does not say it; relative to the shared directory, or a job.
_METAVARS = {
    "links": "NAME=SHARED_PATH",
    "checkpoint": "SHARED_PATH",
    "resume": "JOB",
    "step": "REGEX",
    "idle_gpu": "PERCENT:TIME",
    "array": "NUMBERS",
}


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add a flag for each field of JobSpec that has one; `chosen_fields` reads them."""
    for field in reversed(_flags()):
        command = _option(field)(command)
    return command


def chosen_fields(chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of JobSpec among the parameters that click has parsed."""
    return {field.name: chosen[_parameter(field)] for field in _flags()}


def _flags() -> list[Field[Any]]:
    return [field for field in fields(JobSpec) if field.metadata.get("flag")]


def _option(field: Field[Any]) -> Callable[..., Any]:
    is_time = field.name.endswith("_s")
    kind = {"type": Duration(), "metavar": "TIME"} if is_time else dict(_KINDS[str(field.type)])
    if field.name == "priority":
        kind["type"] = click.IntRange(-LARGEST_PRIORITY, LARGEST_PRIORITY)
    if field.name in _METAVARS:
        kind["metavar"] = _METAVARS[field.name]
    default: dict[str, Any] = {} if kind.get("multiple") else {"default": field.default}
    if kind.get("metavar") == "JOB":
        kind["shell_complete"] = complete.jobs
    return click.option(field.metadata["flag"], _parameter(field), help=field.metadata["help"], **{**kind, **default})


def _parameter(field: Field[Any]) -> str:
    """Return click's name for the field's parameter: `name` is taken by the cluster's name."""
    return f"job_{field.name}"
