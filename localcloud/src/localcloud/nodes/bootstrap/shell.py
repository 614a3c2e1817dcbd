"""Runs the programs that a config needs, and writes what they print into cfn-init's logs."""

from __future__ import annotations

import logging
import subprocess

log = logging.getLogger("cfn.init")
commands_log = logging.getLogger("cfn.init.cmd")


def run(
    command: str | list[str],
    name: str,
    env: dict[str, str] | None = None,
    cwd: str | None = None,
) -> int:
    """Run a command, a string in a shell; return its exit status. `env` replaces the whole environment."""
    shown = {key: str(value) for key, value in env.items()} if env else None
    done = subprocess.run(
        command,
        shell=isinstance(command, str),
        env=shown,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    commands_log.info("=" * 60)
    commands_log.info(name)
    for line in done.stdout.decode(errors="replace").splitlines():
        commands_log.info("\t%s", line)
    commands_log.info("Exited with status %d", done.returncode)
    return done.returncode


def truth(value: object) -> bool:
    """Read a boolean of a template, which may be a text."""
    return str(value).lower() in ("true", "yes", "1")
