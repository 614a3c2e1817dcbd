"""phalanx notebook: run Jupyter on the head."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from phalanx.cli import complete
from phalanx.cli.holding import job_or_newest, serve
from phalanx.cli.options import cluster_option, debug_option, load_cluster
from phalanx.jobs.relay import host_of
from phalanx.jobs.transfer import shared_path
from phalanx.jobs.tunnel import notebook


@click.command("notebook")
@cluster_option
@click.option(
    "--root",
    metavar="SHARED_PATH",
    default="",
    help="The directory that it shows. Without it: the whole shared directory.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8888, show_default=True, help="The port on this machine."
)
@debug_option
@click.argument("job", required=False, shell_complete=complete.jobs)
def command(name: str | None, file: Path | None, root: str, port: int, job: str | None) -> int:
    """Run JupyterLab on the head, in the shared directory, for this machine only, until Ctrl-C.

    It runs in the environment of JOB (default: the newest) if that contains Jupyter, and otherwise in the image's. It
    runs as the job user, bound to 127.0.0.1, with its own token. Ctrl-C ends it and its kernels, and verifies that.

    \b
    Examples:
      phalanx notebook
      phalanx notebook 261121-0755
      phalanx notebook --root experiments --port 8889
    """
    cluster = load_cluster(name, file)
    token = secrets.token_urlsafe(24)
    as_root = not cluster.accounts_separated
    program = notebook(shared_path(cluster, root), token, host_of(cluster.name), as_root)
    return serve(cluster, program, port, f"/?token={token}", job_or_newest(cluster, job))
