"""The flags of `phalanx run` that are fields of JobSpec, generated from its definition; and NAME=value pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import click

from phalanx.cli import complete
from phalanx.jobs.job_model import JobSpec
from phalanx.spec.spec_checks import WrongError, duration_s


def pairs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse NAME=value pairs; a value may contain further equal signs."""
    for value in values:
        if "=" not in value or value.startswith("="):
            raise click.BadParameter(f"'{value}' is not of the form NAME=value")
    return dict(value.split("=", 1) for value in values)


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


# By the type of the field, as the class spells it.
_KINDS: dict[str, dict[str, Any]] = {
    "Optional[int]": {"type": click.IntRange(1)},
    "int": {"type": click.IntRange(0)},
    "bool": {"is_flag": True},
    "Optional[str]": {"metavar": "TEXT"},
    "Path": {"type": click.Path(path_type=Path, exists=True, file_okay=False)},
    "Mapping[str, str]": {"multiple": True, "metavar": "NAME=value", "callback": pairs},
}


# What a value names, where its type does not say it; relative to the shared directory, or a job.
_METAVARS = {"links": "NAME=SHARED_PATH", "checkpoint": "SHARED_PATH", "resume": "JOB"}


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
    if field.name in _METAVARS:
        kind["metavar"] = _METAVARS[field.name]
    default: dict[str, Any] = {} if kind.get("multiple") else {"default": field.default}
    if kind.get("metavar") == "JOB":
        kind["shell_complete"] = complete.jobs
    return click.option(field.metadata["flag"], _parameter(field), help=field.metadata["help"], **{**kind, **default})


def _parameter(field: Field[Any]) -> str:
    """Return click's name for the field's parameter: `name` is taken by the cluster's name."""
    return f"job_{field.name}"
