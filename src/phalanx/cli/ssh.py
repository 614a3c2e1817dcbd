"""phalanx ssh: log in to a node, or run one command there."""

from __future__ import annotations

import shlex
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


def command_of(context: click.Context, words: tuple[str, ...]) -> str:
    """Return the command for the node's shell from the arguments before and after `--`: "" without any.

    One word is a line for the shell. Several stay the words that they are here, as in `run`.
    """
    found = [*words, *context.meta.get(_COMMAND, [])]
    return found[0] if len(found) == 1 else shlex.join(found)


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

    A single word is a line for the node's shell. Several words are passed on as they are.

    \b
    Examples:
      phalanx ssh
      phalanx ssh worker2
      phalanx ssh deeplearning-worker3 -- nvidia-smi
      phalanx ssh -- 'cd /efs && du -sh *'
      phalanx ssh --admin -- sudo dmesg
    """
    cluster = load_cluster(name, file)
    text = command_of(context, argv)
    try:
        remote = cluster.remote(node, cluster.admin_user) if admin else cluster.remote(node)
    except UnknownNodeError as error:
        typed = f"{node} {text}".strip()
        error.hint += f"\n`phalanx ssh -- {typed}` runs a command on the head, `phalanx exec -- {typed}` on all nodes."
        raise
    return remote.interactive(text or None)
