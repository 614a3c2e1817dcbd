"""phalanx emr-scripts: write the scripts for an EMR cluster that phalanx did not make."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.console import note, print_json, say
from phalanx.cli.options import debug_option, json_option
from phalanx.errors import SpecError
from phalanx.template.emr.scripts import texts


@click.command("emr-scripts")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    show_default=True,
    metavar="PATH",
    help="Write to this path. Here: a directory.",
)
@json_option
@debug_option
def command(output: Path, as_json: bool) -> None:
    """Write two scripts for an EMR cluster of your own: emr_efs_bootstrap.sh and metadata_setup.sh.

    The first is a bootstrap action that mounts an EFS file system at /efs; its arguments are the file system's id and
    its region. The second is sourced on the master node: it lists the nodes for programs that train on all of them.
    Both work without phalanx.

    \b
    Examples:
      phalanx emr-scripts
      aws s3 cp emr_efs_bootstrap.sh s3://my-bucket/
      aws emr create-cluster … --bootstrap-actions Path=s3://my-bucket/emr_efs_bootstrap.sh,Args=[fs-0123abcd,us-east-1]
    """
    written = [output / name for name in texts()]
    try:
        output.mkdir(parents=True, exist_ok=True)
        for path, text in zip(written, texts().values(), strict=True):
            path.write_text(text)
            path.chmod(0o755)
    except OSError as error:
        raise SpecError(f"can't write to {output}: {error.strerror}", code="cannot-write") from error
    if as_json:
        print_json([str(path) for path in written])
        return
    for path in written:
        say(str(path))
    note("Put the first into S3 as a bootstrap action; copy the second to the master node, and source it there.")
