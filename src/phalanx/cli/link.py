"""phalanx local link: make the links of the local cloud's nodes as slow as Ethernet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from phalanx.cli import complete
from phalanx.cli.console import print_json, print_table
from phalanx.cli.local_nodes import Quantity, members_by_name
from phalanx.cli.options import cluster_option, debug_option, json_option
from phalanx.local import endpoint

_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
# With less, a node's signs of life come too late; more than the upper limit no link between nodes carries.
_RATES = (10**6, 32 * 10**9)
_LONGEST_DELAY_S = 1.0


@click.command("link")
@click.argument("nodes", nargs=-1, metavar="[NODE]...", shell_complete=complete.nodes)
@cluster_option
@click.option(
    "--rate",
    "rate_bit_s",
    type=Quantity("rate", _BITS, *_RATES),
    help="Bits per second, each way: 250mbit, 1gbit … (1mbit to 32gbit), or none.",
)
@click.option(
    "--delay",
    "delay_s",
    type=Quantity("delay", _SECONDS, 1e-6, _LONGEST_DELAY_S),
    help="How much later each packet leaves a node: 200us, 5ms … (at most 1s), or none.",
)
@json_option
@debug_option
def link(
    nodes: tuple[str, ...],
    name: str | None,
    file: Path | None,
    rate_bit_s: float | None,
    delay_s: float | None,
    as_json: bool,
) -> None:
    """Limit or show what the links of a local cluster's nodes carry: of these nodes, or of all.

    An option that is left out keeps its value. The limit stays when a node reboots; a node that is launched later has
    none. A delay needs the kernel's netem. Root on a node can lift what limits its own sending.

    \b
    Examples:
      phalanx local link --rate 1gbit
      phalanx local link worker2 --rate 100mbit --delay 2ms
      phalanx local link --rate none --delay none
      phalanx local link --json
    """
    members = members_by_name(name, file, nodes)
    links = _links()
    if rate_bit_s is not None or delay_s is not None:
        for instance_id in members.values():
            rate, delay = links[instance_id]
            wanted = (rate if rate_bit_s is None else int(rate_bit_s), delay if delay_s is None else delay_s)
            endpoint.shape(instance_id, *wanted)
        links = _links()
    rows = [{"name": node, "rate_bit_s": links[key][0], "delay_s": links[key][1]} for node, key in members.items()]
    print_json(rows) if as_json else _print(rows)


def _links() -> dict[str, tuple[int, float]]:
    """Return the rate and delay of each node's link, by instance."""
    return {node["instance_id"]: (node["rate_bit_s"], node["delay_s"]) for node in endpoint.status()["nodes"]}


def _print(rows: list[dict[str, Any]]) -> None:
    shown = [[row["name"], _rate(row["rate_bit_s"]), _delay(row["delay_s"])] for row in rows]
    print_table(["NAME", "RATE", "DELAY"], shown)


def _rate(bit_s: int) -> str:
    return f"{bit_s / 1e6:g} Mbit/s" if bit_s else "unlimited"


def _delay(delay_s: float) -> str:
    return f"{delay_s * 1e3:g} ms" if delay_s else "none"
