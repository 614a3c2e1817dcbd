"""phalanx completion: the shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from phalanx.cli.options import debug_option


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@debug_option
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      eval "$(phalanx completion bash)"              # in ~/.bashrc
      phalanx completion zsh > ~/.zfunc/_phalanx
      phalanx completion fish > ~/.config/fish/completions/phalanx.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "phalanx", "_PHALANX_COMPLETE").source())
