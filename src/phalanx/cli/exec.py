"""phalanx exec: one command on all nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli import complete
from phalanx.cli.console import duration, note, print_json
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster
from phalanx.cli.ssh import NodeThenCommand, command_of
from phalanx.cli.terminal import beneath, write
from phalanx.cluster.gather import gather

if TYPE_CHECKING:
    from phalanx.cluster.gather import Verdict


@click.command("exec", cls=NodeThenCommand, context_settings={"allow_interspersed_args": False})
@cluster_option
@click.option(
    "--node",
    "nodes",
    multiple=True,
    help="This node. Repeatable; without it, all nodes.",
    shell_complete=complete.nodes,
)
@click.option("--sudo", is_flag=True, help="Run as root, through the image's default user.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.1), default=3600.0, help="In seconds; default: an hour."
)
@json_option
@debug_option
@click.argument("argv", metavar="[--] COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context,
    name: str | None,
    file: Path | None,
    nodes: tuple[str, ...],
    sudo: bool,
    timeout_s: float,
    as_json: bool,
    argv: tuple[str, ...],
) -> int:
    """Run COMMAND on all nodes at once, as the job user. Each node's output follows its result.

    This is not a job: nothing is copied, and no process outlives its shell. The exit code is 1 if any node failed.
    A single word is a line for each node's shell. Several words are passed on as they are.

    \b
    Examples:
      phalanx exec -- nvidia-smi -L
      phalanx exec --sudo -- apt-get install -y htop
      phalanx exec --node worker2 --node worker3 -- df -h /tmp
      phalanx exec 'free -h | head -n 2'
    """
    text = command_of(context, argv)
    if not text:
        raise click.UsageError("there is no command to run", context)
    cluster = load_cluster(name, file)
    verdicts = []
    for verdict in gather(cluster, text, nodes=nodes, sudo=sudo, timeout_s=timeout_s):
        verdicts.append(verdict)
        if not as_json:
            _print(verdict)
    if as_json:
        print_json([verdict.to_json() for verdict in verdicts])
    return 0 if all(verdict.ok for verdict in verdicts) else 1


def _print(verdict: Verdict) -> None:
    """Print the result to stderr, so that a pipe gets only the output."""
    word = click.style("ok", fg="green") if verdict.ok else click.style(_failure(verdict), fg="red")
    reason = f": {beneath(verdict.error)}" if verdict.error else ""
    note(f"{click.style(verdict.node, bold=True)}: {word} after {duration(verdict.took_s)}{reason}")
    for stream, data in ((sys.stdout, verdict.stdout), (sys.stderr, verdict.stderr)):
        write(stream, data if data.endswith(b"\n") or not data else data + b"\n")


def _failure(verdict: Verdict) -> str:
    return f"status {verdict.status}" if verdict.status is not None else "failed"
