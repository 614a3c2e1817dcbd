"""phalanx ui: show clusters and jobs in this machine's browser."""

from __future__ import annotations

import signal
from contextlib import nullcontext

import click

from phalanx import waits
from phalanx.cli.console import note, say
from phalanx.cli.options import debug_option
from phalanx.errors import PhalanxError

try:
    from phalanx.ui import queries, server
except ModuleNotFoundError as error:
    queries = server = None
    missing = error.name


@click.command("ui")
@click.option("--port", type=click.IntRange(1, 65535), help="The port on this machine. Without it: a free one.")
@debug_option
def command(port: int | None) -> int:
    """Show clusters, nodes and jobs in this machine's browser, until Ctrl-C.

    Open the link that it prints. It works once, so the browser that opens it is the only one that can use the page.
    Other users of this machine can't, and nothing is sent elsewhere. It needs `pip install 'phalanx[ui]'`.

    \b
    Examples:
      phalanx ui
      phalanx ui --port 8400
    """
    if queries is None or server is None:
        raise PhalanxError(f"`phalanx ui` needs {missing}", "pip install 'phalanx[ui]'", code="extra-missing")
    waits.show_with(lambda _: nullcontext())
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.Page(queries.Queries(), port or 0).serve(_tell)
    except KeyboardInterrupt:
        note("")
    return 0


def _tell(link: str) -> None:
    say(link)
    note("Open this link in your browser; it works once. Press Ctrl-C to end the page.")
