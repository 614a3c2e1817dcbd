"""phalanx schema: print the JSON Schema of phalanx.yaml."""

from __future__ import annotations

import click

from phalanx.cli.console import print_json
from phalanx.cli.options import debug_option
from phalanx.spec.spec_schema import json_schema


@click.command("schema")
@debug_option
def command() -> None:
    """Print the JSON Schema of phalanx.yaml, with which editors complete the file and check it as you type.

    \b
    Examples:
      phalanx schema > phalanx.schema.json
      # then add this first line to phalanx.yaml, for editors with yaml-language-server:
      # yaml-language-server: $schema=phalanx.schema.json
    """
    print_json(json_schema())
