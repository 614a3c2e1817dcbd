"""phalanx tensorboard: show a job's TensorBoard in the browser."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli import complete
from phalanx.cli.holding import job_or_newest, serve
from phalanx.cli.options import cluster_option, debug_option, load_cluster
from phalanx.jobs.transfer import source_path
from phalanx.jobs.tunnel import tensorboard


@click.command("tensorboard")
@cluster_option
@click.option("--logdir", metavar="JOB_PATH", default=".", help="Where the job writes events.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=6006, show_default=True, help="The port on this machine."
)
@debug_option
@click.argument("job", required=False, shell_complete=complete.jobs)
def command(name: str | None, file: Path | None, logdir: str, port: int, job: str | None) -> int:
    """Show the TensorBoard of JOB (default: the newest) in this machine's browser, until Ctrl-C.

    TensorBoard runs on the head, in JOB's environment if that contains it, and otherwise in the image's. It runs as
    the job user, bound to 127.0.0.1. Ctrl-C ends it, and verifies that.

    \b
    Examples:
      phalanx tensorboard
      phalanx tensorboard 261121-0755 --logdir runs
      phalanx tensorboard --logdir /efs/runs --port 6007
    """
    cluster = load_cluster(name, file)
    found = job_or_newest(cluster, job)
    return serve(cluster, tensorboard(source_path(cluster, logdir, found)), port, job=found)
