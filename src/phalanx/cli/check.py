"""phalanx check: prove that a part of the cluster is as fast as it should be."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.cli.console import print_json, print_table, say
from phalanx.cli.environment import ENVIRONMENT, chosen_environment, environment_options
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster
from phalanx.counts import first_of
from phalanx.errors import JobError
from phalanx.jobs import check_net, net_result
from phalanx.jobs.check_net import RESULT, gbit
from phalanx.jobs.job import OutputLine, submit
from phalanx.jobs.net_plot import svg
from phalanx.jobs.net_result import MOST_BYTES

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster
    from phalanx.jobs.check_net import Network
    from phalanx.jobs.job import JobSpec


@click.group("check")
def command() -> None:
    """Check a part of the cluster from its nodes.

    \b
    Examples:
      phalanx check net
    """


@command.command("net")
@cluster_option
@click.option(
    "--launcher",
    type=click.Choice(["exec", "mpi"]),
    default="exec",
    show_default=True,
    help="What starts the processes. exec sums with PyTorch, by NCCL or gloo; mpi with mpi4py.",
)
@environment_options
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Draw it as SVG, too.")
@json_option
@debug_option
def net(
    name: str | None, file: Path | None, launcher: str, plot: Path | None, as_json: bool, **environment: Any
) -> int:
    """Measure every link between the nodes, and all-reduce over all of them, and name what is slow.

    This runs as a job with one process on each node, so `phalanx jobs`, `logs` and `stop` work. Bandwidth and round
    trips are those of TCP. The all-reduce needs PyTorch or mpi4py in the image or in --recipe. The exit code is 1
    if a link is cut, a node or link has less than half of what others have or its type promises, or NCCL does not
    use an EFA.

    \b
    Examples:
      phalanx check net
      phalanx check net --recipe torch --plot net.svg
      phalanx check net --launcher mpi --recipe openmpi --json
    """
    cluster = load_cluster(name, file)
    cluster.require_ready()
    members = cluster.members()
    chosen = chosen_environment(Path("/nonexistent"), **{key: environment[key] for key in ENVIRONMENT})
    with tempfile.TemporaryDirectory() as parent:
        result = _result(cluster, check_net.job(Path(parent) / "code", launcher, chosen))
    found = net_result.network(result, {node.address: node.name for node in members})
    promised = _promised_bit_s(cluster, {node.name: node.type for node in members})
    problems = check_net.problems(found, promised)
    if plot is not None:
        plot.write_text(svg(found), encoding="utf-8")
    print_json(_record(found, promised, problems)) if as_json else _print(found, promised, problems)
    return 1 if problems else 0


def _result(cluster: Cluster, spec: JobSpec) -> bytes:
    """Run the job and return what its first rank printed. Raises JobError if it failed."""
    job = submit(cluster, spec)
    parts, status, left = [], None, MOST_BYTES
    try:
        for event in job.follow():
            if not isinstance(event, OutputLine):
                status = event
            elif event.data.startswith(RESULT.encode()) and left > 0:
                parts.append(event.data.removeprefix(RESULT.encode()).rstrip(b"\n"))
                left -= len(event.data)
    except KeyboardInterrupt:
        job.stop()
        raise
    if status is None or status.exit_code != 0 or not parts:
        reason = ": ".join([status.message, *status.tail[-1:]]) if status else "it ended without a status"
        raise JobError(
            f"the network can't be measured: {reason}",
            f"`phalanx logs {job.id}` shows its output.",
            code="not-measured",
        )
    return b"".join(parts)


def _promised_bit_s(cluster: Cluster, types: dict[str, str]) -> dict[str, float]:
    """Return what its type promises to each node at all times, for nodes whose type promises something."""
    cloud = cluster.aws()
    promises = {kind: cloud.site.promised_bit_s(kind) for kind in set(types.values())}
    return {node: promised for node, kind in types.items() if (promised := promises[kind]) is not None}


def _record(found: Network, promised_bit_s: dict[str, float], problems: list[str]) -> dict[str, Any]:
    return {
        "nodes": [
            {
                "name": node,
                "sends_bit_s": found.sends_bit_s(node),
                "receives_bit_s": found.receives_bit_s(node),
                "promised_bit_s": promised_bit_s.get(node),
                "round_trip_s": found.round_trip_s(node),
                "transport": found.transports.get(node),
                "efa": node in found.with_efa,
            }
            for node in found.nodes
        ],
        "links": [vars(link) for link in found.links],
        "engine": found.engine or None,
        "no_engine": found.no_engine or None,
        "all_reduce": [
            {"bytes": size, "seconds": took_s, "bus_bit_s": found.bus_bit_s(size, took_s)}
            for size, took_s in found.sums
        ],
        "problems": problems,
    }


def _print(found: Network, promised_bit_s: dict[str, float], problems: list[str]) -> None:
    rows = [
        [
            node,
            gbit(found.sends_bit_s(node)),
            gbit(found.receives_bit_s(node)),
            gbit(promised_bit_s[node]) if node in promised_bit_s else "-",
            f"{found.round_trip_s(node) * 1e6:.0f} µs",
            found.transports.get(node, "-"),
        ]
        for node in found.nodes
    ]
    print_table(["NAME", "SENDS", "RECEIVES", "PROMISED", "ROUND TRIP", "ENGINE'S TRANSPORT"], rows)
    if found.sums:
        say()
        sums = [[f"{size >> 10} KiB", f"{s * 1e3:.2f} ms", gbit(found.bus_bit_s(size, s))] for size, s in found.sums]
        print_table([f"ALL-REDUCE ({found.engine})", "TIME", "PER LINK"], sums)
    elif found.no_engine:
        hint = " (`--recipe torch`, or `--launcher mpi` with mpi4py)" if "module" in found.no_engine else ""
        say(f"no all-reduce: {found.no_engine}{hint}")
    say()
    say(
        f"wrong: {first_of(problems, '; ')}"
        if problems
        else f"fine: all {len(found.nodes)} nodes are about equally fast"
    )
