"""What the commands of `phalanx local` about single nodes share: the nodes, and quantities with units."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from phalanx.cli.options import load_cluster
from phalanx.errors import LocalCloudError
from phalanx.spec.cloud_names import is_local


class Quantity(click.ParamType):
    """A number with a unit, such as 250mbit, or `none`, which is 0."""

    def __init__(self, name: str, units: Mapping[str, float], least: float, most: float) -> None:
        self.name, self._units, self._least, self._most = name, units, least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float) or value == "none":
            return 0.0 if value == "none" else value
        found = re.fullmatch(rf"(\d+(?:\.\d+)?)({'|'.join(self._units)})", value.lower())
        number = float(found[1]) * self._units[found[2]] if found else -1.0
        if not self._least <= number <= self._most:
            self.fail(f"'{value}' is not a {self.name}: see --help", param, ctx)
        return number


def members_by_name(name: str | None, file: Path | None, nodes: tuple[str, ...]) -> dict[str, str]:
    """Return the chosen nodes' instances by name."""
    cluster = load_cluster(name, file)
    if not is_local(cluster.cloud):
        raise LocalCloudError(
            f"{cluster.name} is not on the local cloud", "AWS's nodes can't be changed like this.", code="not-local"
        )
    cluster.require_ready()
    return {node.name: node.instance_id for node in cluster.members(nodes)}
