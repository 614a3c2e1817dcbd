"""phalanx template: print the CloudFormation document."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.console import note
from phalanx.cli.options import debug_option, file_option
from phalanx.cli.planning import note_unchecked, offline_option, planned
from phalanx.errors import SpecError
from phalanx.spec.spec_load import with_location
from phalanx.template import synthesize, uploads


@click.command("template")
@file_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to this path. Here: a file.")
@click.option("--bootstrap-action", is_flag=True, help="Print the object that a cluster of EMR needs in S3 instead.")
@offline_option
@debug_option
def command(file: Path, output: Path | None, bootstrap_action: bool, offline: bool) -> None:
    """Print the complete CloudFormation document, for AWS's console. `up` sends the agent's text in it as
    parameters.

    \b
    Examples:
      phalanx template > cluster.json
      phalanx template -o cluster.json
      phalanx template --offline        # asks nothing, as without credentials or a connection
    """
    plan = planned(file, offline)
    note_unchecked(plan)
    with with_location(file):
        text = "".join(uploads(plan).values()) if bootstrap_action else synthesize(plan)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise SpecError(f"can't write {output}: {error.strerror}", code="cannot-write") from error
    note(f"Wrote {len(text):,} bytes to {output}.")
