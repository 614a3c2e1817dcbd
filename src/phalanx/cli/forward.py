"""phalanx forward: forward a port of this machine to a node."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import click

from phalanx.cli import complete
from phalanx.cli.console import note, say
from phalanx.cli.holding import until_interrupted
from phalanx.cli.options import cluster_option, debug_option, load_cluster
from phalanx.jobs.relay import host_of
from phalanx.jobs.tunnel import answers, forward


def _ports(_: click.Context, __: click.Parameter, value: str) -> tuple[int, int]:
    """Parse LOCAL[:REMOTE]."""
    found = re.fullmatch(r"(\d{1,5})(?::(\d{1,5}))?", value)
    ports = [int(port) for port in found.groups(value.partition(":")[0])] if found else []
    if not ports or not all(0 < port < 65536 for port in ports):
        raise click.BadParameter(f"'{value}' is neither PORT nor PORT:PORT (this machine's, then the node's)")
    return ports[0], ports[1]


@click.command("forward")
@cluster_option
@click.option("--node", default="head", show_default=True, help="This node.", shell_complete=complete.nodes)
@debug_option
@click.argument("ports", metavar="PORT[:PORT]", callback=_ports)
def command(name: str | None, file: Path | None, node: str, ports: tuple[int, int]) -> int:
    """Forward a port of this machine to a port of a node's 127.0.0.1, or else its ::1, until Ctrl-C.

    Of two ports, the first is this machine's and the second the node's. Only this machine can connect to it.
    Browsers reach pages only at CLUSTER.localhost, so that no page gets cookies of other services on this machine.

    \b
    Examples:
      phalanx forward 8888
      phalanx forward 9000:8265 --node worker2
    """
    cluster = load_cluster(name, file)
    remote, host = cluster.remote(node), host_of(cluster.name)
    with forward(remote, *ports, host) as connection:
        say(f"http://{host}:{ports[0]}")
        note(f"forwards 127.0.0.1:{ports[0]} to port {ports[1]} of {remote.host}; press Ctrl-C to end.")
        threading.Thread(target=_warn_if_silent, args=(*ports, remote.host), daemon=True).start()
        until_interrupted(connection)
    return 0


def _warn_if_silent(local_port: int, port: int, host: str) -> None:
    if not answers(local_port):
        note(f"warning: nothing listens on port {port} of {host} yet; one that listens later will be reached.")
