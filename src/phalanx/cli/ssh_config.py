"""phalanx ssh-config: add the cluster to the user's ssh configuration."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.console import note, say
from phalanx.cli.options import cluster_option, debug_option, load_cluster
from phalanx.cluster import ssh_config
from phalanx.node.workers_group import worker_numbers


@click.command("ssh-config")
@cluster_option
@click.option("--install", is_flag=True, help="Include it in ~/.ssh/config: one line, once for all clusters.")
@debug_option
def command(name: str | None, file: Path | None, install: bool) -> None:
    """Print the Host blocks with which plain ssh, scp, rsync and VS Code Remote reach the cluster by its name.

    \b
    Examples:
      phalanx ssh-config --install
      ssh demo                              # the head
      rsync -a data/ demo-worker2:data/     # another node
      phalanx ssh-config > hosts; ssh -F hosts demo
    """
    cluster = load_cluster(name, file)
    if not install:
        click.echo(ssh_config.hosts_text(cluster), nl=False)
        return
    done = ssh_config.include_hosts(cluster)
    say(
        f"ssh {cluster.name}"
        + "".join(f", ssh {cluster.name}-worker{n}" for n in worker_numbers(min(cluster.nodes, 3)))
    )
    if done.added:
        note(f"{done.config} has a new first line: {done.line}")
        note("To undo this, delete that line. `phalanx down` removes the cluster's part of what it includes.")
    else:
        note(f"{done.config} already includes it.")
