"""Which configs of AWS::CloudFormation::Init run, in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from localcloud.nodes.bootstrap.failures import FailedError

INIT = "AWS::CloudFormation::Init"
Config = tuple[str, dict[str, Any]]


def configs(metadata: dict[str, Any], names: Sequence[str]) -> list[Config]:
    """Return the configs of these config sets, by name, in their order. Raises FailedError for an undefined one."""
    init = metadata[INIT]
    if "configSets" not in init:
        _require(list(names) == ["default"], f"no ConfigSet named {names[-1]} exists")
        return [("config", init.get("config") or {})]
    sets = init["configSets"]
    _require(isinstance(sets, dict), "configSets should be a mapping of name to list")
    return [config for name in names for config in _of_set(init, sets, name, ())]


def _of_set(init: dict[str, Any], sets: dict[str, Any], name: str, above: tuple[str, ...]) -> Iterator[Config]:
    _require(name in sets, f"no ConfigSet named {name} exists")
    _require(name not in above, f"circular dependency of configSets: {' → '.join((*above, name))}")
    for entry in sets[name] if isinstance(sets[name], list) else [sets[name]]:
        if isinstance(entry, dict):
            _require("ConfigSet" in entry, f"ConfigSet {name}: {entry} is neither a config nor a ConfigSet")
            yield from _of_set(init, sets, entry["ConfigSet"], (*above, name))
        else:
            _require(entry in init, f"no configuration found with name: {entry}")
            yield entry, init[entry] or {}


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise FailedError(reason)
