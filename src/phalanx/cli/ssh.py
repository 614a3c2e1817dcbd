"""phalanx ssh: log in to a node, or run one command there."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli import complete
from phalanx.cli.options import cluster_option, debug_option, load_cluster
from phalanx.cluster.cluster_record import UnknownNodeError

_COMMAND = "phalanx.ssh.command"


class NodeThenCommand(click.Command):
    """A command that splits its arguments at the first `--`, which click drops: `ssh -- hostname` names no node."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta[_COMMAND] = args[:cut], args[cut + 1 :]
        return super().parse_args(ctx, args)


def words_after_dashes(context: click.Context) -> list[str]:
    """Return the arguments after `--`, unchanged."""
    return context.meta.get(_COMMAND, [])


@click.command("ssh", cls=NodeThenCommand, context_settings={"allow_interspersed_args": False})
@cluster_option
@click.option("--admin", is_flag=True, help="Log in as the image's default user, which may use sudo.")
@debug_option
@click.argument("node", default="head", shell_complete=complete.nodes)
@click.argument("argv", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context, name: str | None, file: Path | None, admin: bool, node: str, argv: tuple[str, ...]
) -> int:
    """Log in to NODE (default: the head), or run COMMAND there. Exits with ssh's exit status.

    \b
    Examples:
      phalanx ssh
      phalanx ssh worker2
      phalanx ssh deeplearning-worker3 -- nvidia-smi
      phalanx ssh --admin -- sudo dmesg
    """
    cluster = load_cluster(name, file)
    # Joined with spaces, as ssh does: the node's shell parses it.
    text = " ".join([*argv, *words_after_dashes(context)])
    try:
        remote = cluster.remote(node, cluster.admin_user) if admin else cluster.remote(node)
    except UnknownNodeError as error:
        typed = f"{node} {text}".strip()
        error.hint += f"\n`phalanx ssh -- {typed}` runs a command on the head, `phalanx exec -- {typed}` on all nodes."
        raise
    return remote.interactive(text or None)
