"""phalanx init: write a short commented phalanx.yaml."""

from __future__ import annotations

import re
from pathlib import Path

import click

from phalanx.cli.console import say
from phalanx.cli.options import debug_option, file_option
from phalanx.errors import SpecError
from phalanx.spec.cloud_names import CLOUDS
from phalanx.spec.spec import KEYS
from phalanx.spec.spec_checks import WrongError
from phalanx.spec.spec_init import init_text


@click.command("init")
@click.option("--cloud", type=click.Choice(sorted(CLOUDS)), default="local", show_default=True, help="The cloud.")
@click.option("-c", "--cluster", "name", metavar="NAME", help="The cluster's name. Without it: this directory's.")
@file_option
@click.option("--force", is_flag=True, help="Do it even if something is lost. Here: the file's contents.")
@debug_option
def command(cloud: str, name: str | None, file: Path, force: bool) -> None:
    """Write a short commented phalanx.yaml.

    \b
    Examples:
      phalanx init
      phalanx init --cloud aws -c vision
    """
    if file.exists() and not force:
        raise SpecError(f"{file} exists already", "Edit it, or overwrite it with --force.", code="file-exists")
    try:
        file.write_text(init_text(_checked(name or _directory_name()), cloud))
    except OSError as error:
        raise SpecError(f"can't write {file}: {error.strerror}", code="cannot-write") from error
    say(f"Wrote {file}. Next: `phalanx plan` shows what `up` would create, `phalanx up` creates it.")


def _checked(name: str) -> str:
    """Check the name now, rather than at the first `plan`."""
    try:
        return KEYS["name"].accept(name, {})
    except WrongError as wrong:
        raise SpecError(
            f"--cluster: {wrong.what}", f"{wrong.hint[:1].upper()}{wrong.hint[1:]}.", code=wrong.code
        ) from None


def _directory_name() -> str:
    """Turn this directory's name into a valid stack name: letters, digits and dashes, a letter first."""
    cleaned = re.sub(r"[^A-Za-z0-9]+", "-", Path.cwd().name).strip("-").lstrip("0123456789-")
    return cleaned[:40].rstrip("-") or "demo"
