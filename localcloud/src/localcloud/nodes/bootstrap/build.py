"""cfn-init: makes the machine what a resource's AWS::CloudFormation::Init describes."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localcloud.nodes.bootstrap import (
    accounts,
    commands,
    configsets,
    files,
    packages,
    services,
    sources,
)
from localcloud.nodes.bootstrap.downloads import Downloads
from localcloud.nodes.bootstrap.shell import commands_log, log

_DATA = Path("/var/lib/cfn-init/data")
_FORMAT = "%(asctime)s [%(levelname)s] %(message)s"


def build(metadata: dict[str, Any], names: Sequence[str], endpoint: str, verbose: bool) -> None:
    """Apply the config sets of this metadata, in order. Raises FailedError at the first step that fails."""
    _open_logs(verbose)
    _DATA.mkdir(parents=True, exist_ok=True, mode=0o700)
    (_DATA / "metadata.json").write_text(json.dumps(metadata, indent=4))
    downloads = Downloads(metadata, endpoint)
    log.info("Running configSets: %s", ", ".join(names))
    try:
        for name, config in configsets.configs(metadata, names):
            log.info("Running config %s", name)
            _apply(config, downloads)
    except Exception as error:
        log.error("Build failed: %s", error)
        raise
    log.info("ConfigSets completed")


def _apply(config: dict[str, Any], downloads: Downloads) -> None:
    """Apply a config's sections in AWS's order, whatever their order in the template."""
    changes: dict[str, Any] = {"packages": packages.apply(config.get("packages") or {})}
    changes["groups"] = accounts.add_groups(config.get("groups") or {})
    changes["users"] = accounts.add_users(config.get("users") or {})
    changes["sources"] = sources.apply(config.get("sources") or {}, downloads)
    changes["files"] = files.apply(config.get("files") or {}, downloads)
    changes["commands"] = commands.apply(config.get("commands") or {})
    services.apply(config.get("services") or {}, changes)


def _open_logs(verbose: bool) -> None:
    for logger, name in ((log, "cfn-init.log"), (commands_log, "cfn-init-cmd.log")):
        handler = logging.FileHandler(f"/var/log/{name}")
        handler.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    if verbose:
        log.addHandler(logging.StreamHandler(sys.stderr))
