"""The commands of a config, in the order of their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from localcloud.nodes.bootstrap.failures import FailedError
from localcloud.nodes.bootstrap.shell import log, run, truth


def apply(commands: dict[str, dict[str, Any]]) -> list[str]:
    """Run the commands whose tests pass; return their names. Raises FailedError at the first that fails.

    `waitAfterCompletion` has no effect, as on AWS: it is for machines with Windows.
    """
    return [name for name in sorted(commands) if _run(name, commands[name])]


def _run(name: str, given: dict[str, Any]) -> bool:
    if "command" not in given:
        raise FailedError(f"{name} does not specify the 'command' attribute, which is required")
    cwd = str(Path(given["cwd"]).expanduser()) if "cwd" in given else None
    env = given.get("env")
    if "test" in given and run(given["test"], f"Test for Command {name}", env, cwd):
        log.info("Command %s: its test failed", name)
        return False
    if run(given["command"], f"Command {name}", env, cwd) and not truth(given.get("ignoreErrors")):
        raise FailedError(f"Command {name} failed")
    log.info("Command %s ended", name)
    return True
