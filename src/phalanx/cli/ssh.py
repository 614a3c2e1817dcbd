"""phalanx ssh: log in to a node, or run one command there."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from phalanx.cli.options import cluster_option, debug_option, load_cluster


@click.command("ssh", context_settings={"allow_interspersed_args": False})
@cluster_option
@click.option("--admin", is_flag=True, help="As the image's own user, who can sudo, instead of the job user.")
@debug_option
@click.argument("node", default="head")
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def command(name: str | None, file: Path | None, admin: bool, node: str, words: tuple[str, ...]) -> int:
    """Log in to NODE (default: the head), or run COMMAND there. Ends with ssh's exit status.

    \b
    Examples:
      phalanx ssh
      phalanx ssh worker2
      phalanx ssh deeplearning-worker3 -- nvidia-smi
      phalanx ssh --admin -- sudo dmesg
    """
    cluster = load_cluster(name, file)
    remote = cluster.remote(node, cluster.admin_user) if admin else cluster.remote(node)
    return remote.interactive(_one_command(words))


def _one_command(words: tuple[str, ...]) -> str | None:
    """As ssh has it: a single word is shell text, several are the arguments of one command."""
    if not words:
        return None
    return words[0] if len(words) == 1 else shlex.join(words)
