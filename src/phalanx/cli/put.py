"""phalanx put: data to the shared directory."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.options import cluster_option, debug_option, load_cluster


@click.command("put")
@cluster_option
@debug_option
@click.argument("source", metavar="PATH", type=click.Path(path_type=Path))
@click.argument("destination", default="")
def command(name: str | None, file: Path | None, source: Path, destination: str) -> None:
    """Take a file or directory to the cluster's shared directory, where every node and job sees it.

    DESTINATION is relative to the shared directory, or absolute below it; default: its top. One that is a directory,
    or ends with a slash, gets it inside; each file appears whole or not at all.

    \b
    Examples:
      phalanx put data
      phalanx put labels.csv sets/2026/
      phalanx put model.pt /efs/models/first.pt
    """
    from phalanx.cli.carrying import Meter
    from phalanx.reach.transfer import put

    meter = Meter()
    meter.end(put(load_cluster(name, file), source, destination, meter))
