"""phalanx ssh: log in to a node, or run one command there."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli import complete
from phalanx.cli.options import cluster_option, debug_option, load_cluster
from phalanx.cluster.cluster_record import UnknownNodeError

_COMMAND = "phalanx.ssh.command"


class NodeThenCommand(click.Command):
    """Cuts the line at its first `--` itself: click drops it, and `ssh -- hostname` would take hostname for a node."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta[_COMMAND] = args[:cut], args[cut + 1 :]
        return super().parse_args(ctx, args)


def words_after_dashes(context: click.Context) -> list[str]:
    """What stood behind the `--`, as it was typed."""
    return context.meta.get(_COMMAND, [])


@click.command("ssh", cls=NodeThenCommand, context_settings={"allow_interspersed_args": False})
@cluster_option
@click.option("--admin", is_flag=True, help="As the image's own user, who can sudo, instead of the job user.")
@debug_option
@click.argument("node", default="head", shell_complete=complete.nodes)
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context, name: str | None, file: Path | None, admin: bool, node: str, words: tuple[str, ...]
) -> int:
    """Log in to NODE (default: the head), or run COMMAND there. Ends with ssh's exit status.

    \b
    Examples:
      phalanx ssh
      phalanx ssh worker2
      phalanx ssh deeplearning-worker3 -- nvidia-smi
      phalanx ssh --admin -- sudo dmesg
    """
    cluster = load_cluster(name, file)
    # Joined with spaces, as ssh does: the node's shell reads it.
    text = " ".join([*words, *words_after_dashes(context)])
    try:
        remote = cluster.remote(node, cluster.admin_user) if admin else cluster.remote(node)
    except UnknownNodeError as error:
        typed = f"{node} {text}".strip()
        error.hint += f"\n`phalanx ssh -- {typed}` runs a command on the head, `phalanx exec -- {typed}` on all nodes."
        raise
    return remote.interactive(text or None)
